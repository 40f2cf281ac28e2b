"""The lines that compute an index or pointer, those that compute a stored number, read from a function's source,
and which of them a student wrote."""

from collections.abc import Callable
from pathlib import Path

import pytest

from common.inspect.made_of import is_head, made_of
from common.inspect.origins import calls, leaving, loop_waits, origins, piece_of, writers
from common.inspect.own_lines import own_lines
from common.inspect.source_lines import Place


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], str]:
    """written(text): a file that contains it."""

    def write(text: str) -> str:
        file = tmp_path / "kernel.cu"
        file.write_text(text)
        return str(file)

    return write


# ---- addresses

SCORES = """\
__device__ int number() {
    int n = 0;
    n = blockIdx.x * blockDim.x + threadIdx.x;
    return n;
}

__global__ void scores(const float* query, const float* key, float* out, int S, int D) {
    __shared__ float tile[32];
    const int index = number();
    const int q = index / S,
              k = index % S;
    const float* query_row = query + q * D;
    const float* key_row = key + k * D;
    float sum = 0.0f;
    for (int d = 0; d < D; ++d)
        sum += query_row[d] * key_row[d];
    tile[threadIdx.x] = sum;
    out[index] = tile[threadIdx.x];
}
"""


@pytest.fixture
def scores(written) -> str:
    return written(SCORES)


def test_the_pointer_and_what_it_is_made_of(scores: str) -> None:
    assert [one.line for one in origins(Place(scores, 16), "query")] == [15, 12, 10, 9]
    assert {12, 13} <= {one.line for one in origins(Place(scores, 16))}


def test_the_result_of_a_small_function_is_followed(scores: str) -> None:
    assert [one.line for one in origins(Place(scores, 18), "out")][:2] == [9, 3]


def test_nothing_is_said_of_what_cannot_be_read(scores: str, tmp_path: Path) -> None:
    assert origins(Place(str(tmp_path / "none.cu"), 3)) == []
    assert origins(Place(scores, 6)) == []
    assert writers(Place(str(tmp_path / "none.cu"), 3)) == []


def test_where_an_array_is_written(scores: str) -> None:
    assert [one.line for one in writers(Place(scores, 18), "tile")] == [17]


CALLED = """\
__device__ void load_tile(float (&tile)[32][33], const float* matrix, int rows, int cols) {
    tile[threadIdx.y][threadIdx.x] = matrix[threadIdx.y * cols + threadIdx.x];
}

__global__ void product(const float* a, float* c, int M, int K) {
    __shared__ float a_tile[32][33];
    load_tile(a_tile, a, M, K);
    c[threadIdx.x] = a_tile[0][threadIdx.x];
}

void launch_product(const float* a, float* c, int M, int K) {
    product<<<M, 32>>>(
        a, c, M, K);
}

void attention(const float* q, float* out, int S, int D) {
    launch_product(q, out, D, S);
}
"""


def test_the_calls_that_pass_the_arguments(written) -> None:
    file = written(CALLED)
    inside = Place(file, 2, "load_tile", (Place(file, 7, "product"),))
    told = [(one.line, one.text) for one in calls(inside, Place(file, 12))]
    assert told == [
        (7, "load_tile(a_tile, a, M, K);"),
        (12, "product<<<M, 32>>>( a, c, M, K);"),
        (17, "launch_product(q, out, D, S);"),
    ]
    assert calls(Place(file, 8), None) == []
    written(CALLED.replace("    product<<<", "    check(M); product<<<"))
    assert "product<<<M, 32>>>( a, c, M, K);" in [one.text for one in calls(inside, Place(file, 12))]


def test_an_array_is_written_by_the_function_it_is_handed_to(written) -> None:
    assert [one.line for one in writers(Place(written(CALLED), 8), "a_tile")] == [2]


BARRIERS = """\
__device__ void use(float* values, const float* rest) {
    values[threadIdx.x] = rest[threadIdx.x + 1];
}

__global__ void tree(const float* x, float* out, int n) {
    extern __shared__ float shared[];
    float* first = shared;
    float* second = shared + 32;
    if (threadIdx.x >= n) return;
    for (int active = 16; active > 0; active /= 2) {
        use(first, second);
        __syncthreads();
    }
    for (int i = 0; i < n; ++i) {
        if (x[i] < 0.0f) continue;
        out[i] = x[i];
    }
}
"""


def test_what_lets_a_thread_leave_and_whether_a_loop_waits(written) -> None:
    file = written(BARRIERS)
    assert [one.line for one in leaving(Place(file, 12))] == [9, 15]
    assert leaving(Place(file, 2)) == []
    for barrier in ("if (n > 3) __syncthreads();", "__syncwarp();"):
        written(BARRIERS.replace("__syncthreads();", barrier))
        assert not loop_waits(Place(file, 11))
    assert loop_waits(Place(file, 11), True)  # lanes of one warp
    written(BARRIERS)
    assert loop_waits(Place(file, 11)) and loop_waits(Place(file, 11), True)
    assert not loop_waits(Place(file, 16)) and not loop_waits(Place(file, 2))


def test_by_which_pointer_a_part_of_shared_memory_is_reached(written) -> None:
    file = written(BARRIERS.replace("values[threadIdx.x] = rest[threadIdx.x + 1]", "values[threadIdx.x] = 1.0f"))
    called = Place(file, 11, "tree")
    assert piece_of(Place(file, 2, "use", (called,)), "shared") == "first"
    assert piece_of(Place(file, 16, "tree"), "shared") == ""


# ---- numbers, and who wrote their lines

KERNEL = """\
struct State {
    float m, l;
};

__device__ float half_of(float x) {
    return 0.5f * x;
}

__device__ void add(State& state, const float* row, int n) {
    for (int i = 0; i < n; ++i)
        state.l += row[i];
}

__device__ void look_at(float l) {
    l = 3.0f;
}

__global__ void kernel(const float* x, float* out, int n) {
    State state = {0.0f, 0.0f};
    const int unused = 7;
    const float* row = x + blockIdx.x * n;
    add(state, row, n);
    look_at(state.l);
    const float scale = half_of(state.m);
    if (threadIdx.x > n) return;
    out[threadIdx.x] = state.l * scale;
}
"""


@pytest.fixture
def kernel(written) -> str:
    return written(KERNEL)


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(KERNEL.split("\n"), 1) if text in line)


def test_all_that_the_number_is_made_of_and_nothing_else(kernel: str) -> None:
    store = Place(kernel, line_of("out[threadIdx.x] ="), "kernel")
    found = {one.text for one in made_of(store, [])}
    assert {"state.l += row[i];", "add(state, row, n);", "const float scale = half_of(state.m);"} <= found
    assert {"return 0.5f * x;", "for (int i = 0; i < n; ++i)", "if (threadIdx.x > n) return;"} <= found
    assert not {"const int unused = 7;", "l = 3.0f;", "look_at(state.l);"} & found  # passed by value: unchanged


def test_the_nearest_lines_come_first(kernel: str) -> None:
    found = [one.text for one in made_of(Place(kernel, line_of("out[threadIdx.x] ="), "kernel"), [])]
    assert found[0].startswith("out[threadIdx.x]")
    assert found.index("add(state, row, n);") < found.index("const float* row = x + blockIdx.x * n;")


def test_a_function_that_is_not_the_store_s_own_is_followed_to_its_caller(kernel: str) -> None:
    caller = Place(kernel, line_of("add(state, row, n);"), "kernel")
    found = {one.text for one in made_of(Place(kernel, line_of("state.l +="), "add", (caller,)), [])}
    assert "const float* row = x + blockIdx.x * n;" in found


def test_loops_and_conditions_are_heads(kernel: str) -> None:
    heads = [text for text in KERNEL.split("\n") if text and is_head(Place(kernel, line_of(text)))]
    assert [text.split()[0] for text in heads] == ["for"]  # the `if` and its body are on one line


def test_a_file_that_cannot_be_read_gives_nothing() -> None:
    assert made_of(Place("nowhere.cu", 3, "kernel"), []) == []


def test_what_the_solution_has_in_its_gaps_is_the_student_s() -> None:
    file = Path("task2/solution/attention_kernel.cu")
    own, inside = own_lines(str(file)), False
    assert own
    for number, line in enumerate(file.read_text().split("\n"), 1):
        inside = (inside or "BEGIN SOLUTION" in line) and "END SOLUTION" not in line
        if number in own:
            assert inside, f"{number}: {line}"


@pytest.mark.parametrize("file", ["task4/given/stages.cuh", "common/cuda/warp.cuh"])
def test_nothing_that_is_given_is_the_student_s(file: str) -> None:
    assert own_lines(file) == frozenset()


def test_of_another_file_it_is_not_known(kernel: str) -> None:
    assert own_lines(kernel) is None


ONLINE = """\
struct State {
    float m;
    float l;
};

__device__ State add(State state, float score) {
    const float m = fmaxf(state.m, score);
    const float l = state.l * expf(state.m - m) + expf(score - m);
    return {m, l};
}

__device__ State merge(State state) {
    __shared__ State partial[32];
    for (int i = 0; i < 4; ++i) other[i] = 0.0f;
    state = add(state, 1.0f);
    partial[threadIdx.x] = state;
    return partial[0];
}

__global__ void kernel(const float* x, float* out, int n) {
    State state = {-INFINITY, 0.0f};
    for (int i = threadIdx.x; i < n; i += 32) state = add(state, x[i]);
    state = merge(state);
    out[0] = state.l;
}
"""


@pytest.fixture
def stored(written) -> Place:
    """Where merge stores a state."""
    file, lines = written(ONLINE), ONLINE.split("\n")
    call = lines.index("    state = merge(state);") + 1
    here = lines.index("    partial[threadIdx.x] = state;") + 1
    return Place(file, here, "merge", (Place(file, call, "kernel"),))


def test_a_parameter_that_is_assigned_begins_as_what_is_passed_for_it(stored: Place) -> None:
    found = {one.text for one in made_of(stored, [])}
    assert "for (int i = threadIdx.x; i < n; i += 32) state = add(state, x[i]);" in found
    assert "return partial[0];" not in found  # the value of that call comes after the store


def test_a_loop_elsewhere_has_a_variable_of_its_own(stored: Place) -> None:
    assert not any("other[i]" in one.text for one in made_of(stored, []))

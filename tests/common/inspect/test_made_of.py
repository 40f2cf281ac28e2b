"""The lines that a stored number is made of, read from the text; and which of them a student wrote."""

from pathlib import Path

import pytest

from common.inspect.made_of import is_head, made_of, members_at
from common.inspect.own_lines import own_lines
from common.inspect.source_lines import Place

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
def kernel(tmp_path: Path) -> str:
    file = tmp_path / "kernel.cu"
    file.write_text(KERNEL)
    return str(file)


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(KERNEL.split("\n"), 1) if text in line)


def test_all_that_the_number_is_made_of_and_nothing_else(kernel: str) -> None:
    store = Place(kernel, line_of("out[threadIdx.x] ="), "kernel")
    found = {one.text for one in made_of(store, [])}
    assert {"state.l += row[i];", "add(state, row, n);", "const float scale = half_of(state.m);"} <= found
    assert {"return 0.5f * x;", "for (int i = 0; i < n; ++i)", "if (threadIdx.x > n) return;"} <= found
    assert not {"const int unused = 7;", "l = 3.0f;", "look_at(state.l);"} & found  # what is given by value stays


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
    assert [text.split()[0] for text in heads] == ["for"]  # the `if` has what it decides in its own line


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
def stored(tmp_path: Path) -> Place:
    """Where merge stores a state."""
    file = tmp_path / "online.cu"
    file.write_text(ONLINE)
    lines = ONLINE.split("\n")
    call = lines.index("    state = merge(state);") + 1
    here = lines.index("    partial[threadIdx.x] = state;") + 1
    return Place(str(file), here, "merge", (Place(str(file), call, "kernel"),))


def test_one_member_of_a_struct_is_followed_without_the_others(stored: Place) -> None:
    assert members_at(stored) == ["m", "l"]
    maximum, total = ({one.text for one in made_of(stored, [], member)} for member in ("m", "l"))
    assert "const float m = fmaxf(state.m, score);" in maximum <= total
    assert total - maximum == {"const float l = state.l * expf(state.m - m) + expf(score - m);"}


def test_a_parameter_that_is_assigned_begins_as_what_is_passed_for_it(stored: Place) -> None:
    found = {one.text for one in made_of(stored, [])}
    assert "for (int i = threadIdx.x; i < n; i += 32) state = add(state, x[i]);" in found
    assert "return partial[0];" not in found  # what that call gives comes after the store


def test_a_loop_elsewhere_has_a_variable_of_its_own(stored: Place) -> None:
    assert not any("other[i]" in one.text for one in made_of(stored, []))

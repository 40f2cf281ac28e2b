"""The lines that an index or a pointer is made of, read from the text of a function."""

from pathlib import Path

import pytest

from common.inspect.origins import calls, launches_of, leaving, loop_waits, origins, piece_of, used_in, writers
from common.inspect.source_lines import Place

KERNEL = """\
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
def kernel(tmp_path: Path) -> str:
    file = tmp_path / "kernel.cu"
    file.write_text(KERNEL)
    return str(file)


def test_the_pointer_and_what_it_is_made_of(kernel: str) -> None:
    assert [one.line for one in origins(Place(kernel, 16), "query")] == [15, 12, 10, 9]
    assert {12, 13} <= {one.line for one in origins(Place(kernel, 16))}


def test_the_result_of_a_small_function_is_followed(kernel: str) -> None:
    assert [one.line for one in origins(Place(kernel, 18), "out")][:2] == [9, 3]


def test_nothing_is_said_of_what_cannot_be_read(kernel: str, tmp_path: Path) -> None:
    assert origins(Place(str(tmp_path / "none.cu"), 3)) == []
    assert origins(Place(kernel, 6)) == []
    assert writers(Place(str(tmp_path / "none.cu"), 3)) == []


def test_where_an_array_is_written(kernel: str) -> None:
    assert [one.line for one in writers(Place(kernel, 18), "tile")] == [17]


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


def test_the_calls_that_pass_the_arguments(tmp_path: Path) -> None:
    file = tmp_path / "product.cu"
    file.write_text(CALLED)
    inside = Place(str(file), 2, "load_tile", (Place(str(file), 7, "product"),))
    told = [(one.line, one.text) for one in calls(inside, Place(str(file), 12))]
    assert told == [
        (7, "load_tile(a_tile, a, M, K);"),
        (12, "product<<<M, 32>>>( a, c, M, K);"),
        (17, "launch_product(q, out, D, S);"),
    ]
    assert calls(Place(str(file), 8), None) == []
    file.write_text(CALLED.replace("    product<<<", "    check(M); product<<<"))
    assert "product<<<M, 32>>>( a, c, M, K);" in [one.text for one in calls(inside, Place(str(file), 12))]


def test_an_array_is_written_by_the_function_it_is_handed_to(tmp_path: Path) -> None:
    file = tmp_path / "product.cu"
    file.write_text(CALLED)
    assert [one.line for one in writers(Place(str(file), 8), "a_tile")] == [2]


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

__global__ void scale(const float* query, float* scores) {
    scores[threadIdx.x] = query[threadIdx.x];
}

void launch_scale(const float* query, float* scores) {
    scale<<<1, 32>>>(query, scores);
}

void launch_tree(const float* x, float* out, int n) {
    tree<<<1, 32, 256>>>(x, out, n);
}

void attention(const float* x, float* out, int n) {
    launch_tree(x, out, n);
}
"""


def test_what_lets_a_thread_leave_and_whether_a_loop_waits(tmp_path: Path) -> None:
    file = str(tmp_path / "tree.cu")
    Path(file).write_text(BARRIERS)
    assert [one.line for one in leaving(Place(file, 12))] == [9, 15]
    assert leaving(Place(file, 2)) == []
    for barrier in ("if (n > 3) __syncthreads();", "__syncwarp();"):
        Path(file).write_text(BARRIERS.replace("__syncthreads();", barrier))
        assert not loop_waits(Place(file, 11))
    assert loop_waits(Place(file, 11), True)  # of lanes of one warp
    Path(file).write_text(BARRIERS)
    assert (
        loop_waits(Place(file, 11))
        and loop_waits(Place(file, 11), True)
        and not loop_waits(Place(file, 16))
        and not loop_waits(Place(file, 2))
    )


def test_by_which_pointer_a_part_of_shared_memory_is_reached(tmp_path: Path) -> None:
    file = str(tmp_path / "tree.cu")
    Path(file).write_text(BARRIERS.replace("values[threadIdx.x] = rest[threadIdx.x + 1]", "values[threadIdx.x] = 1.0f"))
    called = Place(file, 11, "tree")
    assert piece_of(Place(file, 2, "use", (called,)), "shared") == "first"
    assert piece_of(Place(file, 16, "tree"), "shared") == ""


def test_a_kernel_that_nobody_launches(tmp_path: Path) -> None:
    file = str(tmp_path / "tree.cu")
    Path(file).write_text(BARRIERS)
    lines, says = launches_of("scale", file)
    assert [one.line for one in lines] == [
        25
    ] and says == "launch_scale, which launches it, is called nowhere in this file."
    lines, says = launches_of("tree", file)
    assert [one.line for one in lines] == [29, 33] and says == ""
    assert launches_of("use", file) is None
    Path(file).write_text(BARRIERS.replace("scale<<<1, 32>>>(query, scores);", ""))
    assert launches_of("scale", file) == ([], "scale is launched nowhere.")


def test_the_use_of_an_argument_is_followed_into_the_function_that_reads_it(tmp_path: Path) -> None:
    file = str(tmp_path / "product.cu")
    Path(file).write_text(CALLED)
    *_, last = used_in("a", "product", Place(file, 12))
    assert (last.line, last.function, [one.line for one in last.callers]) == (2, "load_tile", [7])

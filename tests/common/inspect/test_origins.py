"""The lines that an index or a pointer is made of, read from the text of a function."""

from pathlib import Path

import pytest

from common.inspect.origins import calls, origins, writers
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
    told = [(place.line, text) for place, text in calls(inside, Place(str(file), 12))]
    assert told == [
        (7, "load_tile(a_tile, a, M, K);"),
        (12, "product<<<M, 32>>>( a, c, M, K);"),
        (17, "launch_product(q, out, D, S);"),
    ]
    assert calls(Place(str(file), 8), None) == []


def test_an_array_is_written_by_the_function_it_is_handed_to(tmp_path: Path) -> None:
    file = tmp_path / "product.cu"
    file.write_text(CALLED)
    assert [one.line for one in writers(Place(str(file), 8), "a_tile")] == [2]

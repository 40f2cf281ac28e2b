"""The lines that an index or a pointer is made of, read from the text of a function."""

from pathlib import Path

import pytest

from common.inspect.origins import origins, writers
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

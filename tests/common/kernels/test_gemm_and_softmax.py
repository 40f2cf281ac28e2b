"""Task 2's tuned kernels: every path that the launchers choose by size and alignment, and every step."""

from __future__ import annotations

import math

import pytest
import torch
from checked_findings import nothing_found
from torch import Tensor

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.kernels.gemm.gemm import gemm_nn, gemm_nt
from common.kernels.softmax.softmax import softmax
from common.reference import oracle as reference
from common.reference.bounds import running_sum_floor
from common.testing import judging
from common.testing.case import Case

MULTIPROCESSORS = 132  # on an H200, and in the simulator
# Both sides of every threshold at which the softmax changes kernel or shape
LIMITS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
LENGTHS = sorted({1, 3, 4, 31, 65536, 100_003} | {limit + more for limit in LIMITS for more in (-1, 0, 1, 4)})


@pytest.fixture(scope="session")
def tuned(backend: str):
    """Task 2's tuned operators."""
    return load(BuildRequest("task2", "tuned", backend))


def unaligned(x: Tensor) -> Tensor:
    """A copy that starts 4 bytes after a multiple of 16."""
    copy = torch.empty(x.numel() + 1, device=x.device)[1:].view(x.shape)
    assert copy.data_ptr() % 16 == 4
    return copy.copy_(x)


def softmax_case(cols: int, rows: int = 5, change=lambda x: x, call=lambda ops, x: ops.softmax(x)) -> Case:
    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        return {"x": change(4 * torch.randn(rows, cols, generator=generator))}

    axes = ("row", "col")
    return Case(f"{rows} x {cols}", "softmax", inputs, call, reference.softmax, 1e-6, axes, is_softmax=True, draws=1)


def gemm_case(operator: str, m: int, n: int, k: int, batch: int = 1, call=None) -> Case:
    b_shape = (batch, n, k) if operator == "gemm_nt" else (batch, k, n)

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        return {
            "a": torch.randn(batch, m, k, generator=generator) + 1,
            "b": torch.randn(b_shape, generator=generator) + 0.5,
        }

    return Case(
        f"{operator} {batch} {m} {n} {k}",
        "gemm",
        inputs,
        call or (lambda ops, a, b: getattr(ops, operator)(a, b)),
        getattr(reference, operator),
        running_sum_floor(k, 0.5 * k + 5),
        ("batch", "row", "col"),
        draws=1,
    )


def assert_passes(case: Case, ops) -> None:
    verdict = judging.judge(case, ops)
    assert verdict.ok, (verdict.case.name, verdict.max_error, verdict.bound, verdict.diagnosis)


@pytest.mark.parametrize("cols", LENGTHS)
def test_softmax_of_any_length(tuned, cols):
    assert_passes(softmax_case(cols, rows=5 if cols <= 4096 else 2), tuned)


@pytest.mark.parametrize("cols", [128, 1024, 32768, 65536])
def test_softmax_of_unaligned_rows(tuned, cols):
    assert_passes(softmax_case(cols, rows=2, call=lambda ops, x: ops.softmax(unaligned(x))), tuned)


@pytest.mark.parametrize("cols", [100, 3000, 40_000, 70_001])
def test_softmax_of_masked_rows(tuned, cols):
    """-inf scattered, in a whole first chunk, in a whole last chunk, everywhere; and values where exp() overflows."""

    def change(x: Tensor) -> Tensor:
        x[0, ::3] = -math.inf
        x[1, : cols - cols // 10] = -math.inf
        x[2, cols // 10 :] = -math.inf
        x[3] = -math.inf
        x[4] += 1000
        x[5] -= 1000
        return x

    assert_passes(softmax_case(cols, rows=6, change=change), tuned)


def test_rows_that_grow_to_the_end(tuned):
    """Every chunk raises the maximum, so that the sum is rescaled each time."""
    assert_passes(softmax_case(150_000, rows=1, change=lambda x: x + torch.arange(150_000) * 1e-3), tuned)


@pytest.mark.parametrize("operator", ["gemm_nn", "gemm_nt"])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 1, 1),
        (64, 64, 8),
        (64, 64, 16),
        (60, 68, 12),
        (63, 65, 7),
        (65, 63, 9),
        (1, 200, 3),
        (200, 1, 33),
        (4, 4, 4),
    ],
)
def test_small_tiles(tuned, operator, m, n, k):
    assert_passes(gemm_case(operator, m, n, k, batch=2), tuned)


@pytest.mark.parametrize("operator", ["gemm_nn", "gemm_nt"])
@pytest.mark.parametrize(("m", "n", "k"), [(256, 256, 24), (252, 244, 20), (251, 253, 13), (129, 255, 1)])
def test_large_tiles(tuned, operator, m, n, k):
    """The number of matrices needed to keep two large blocks on every SM."""
    assert_passes(gemm_case(operator, m, n, k, batch=MULTIPROCESSORS // 2), tuned)


@pytest.mark.parametrize("operator", ["gemm_nn", "gemm_nt"])
@pytest.mark.parametrize("which", [{"a"}, {"b"}])
def test_unaligned_matrices(tuned, operator, which):
    def call(ops, a, b):
        return getattr(ops, operator)(unaligned(a) if "a" in which else a, unaligned(b) if "b" in which else b)

    assert_passes(gemm_case(operator, 70, 68, 20, batch=3, call=call), tuned)


@pytest.mark.slow
@pytest.mark.parametrize("operator", ["gemm_nn", "gemm_nt"])
def test_more_matrices_than_a_grid_holds(tuned, operator):
    assert_passes(gemm_case(operator, 2, 1, 3, batch=65_537), tuned)


@pytest.mark.parametrize("operator", ["gemm_nn", "gemm_nt"])
@pytest.mark.parametrize("step", [1, 2, 3, 4])
@pytest.mark.parametrize(("m", "n", "k"), [(132, 260, 20), (131, 130, 17)])
def test_steps_of_the_matrix_product(tuned, operator, step, m, n, k):
    call = lambda ops, a, b: getattr(ops, f"{operator}_step")(a, b, step)  # noqa: E731
    assert_passes(gemm_case(operator, m, n, k, batch=2, call=call), tuned)


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("cols", [1, 1024, 4099, 65_536])
def test_steps_of_the_softmax(tuned, step, cols):
    assert_passes(softmax_case(cols, rows=2, call=lambda ops, x: ops.softmax_step(x, step)), tuned)


def test_the_functions_of_the_rooms(tuned):
    """The tensors' device determines which operators they call."""
    for product in (gemm_nn, gemm_nt):
        assert_passes(gemm_case(product.__name__, 5, 3, 7, 2, lambda ops, a, b, of=product: of(a, b)), tuned)
    assert_passes(softmax_case(37, call=lambda ops, x: softmax(x)), tuned)


@pytest.mark.parametrize(
    ("operator", "arguments", "words"),
    [
        ("softmax", [(2, 3, 4)], r"x has 3 dimensions.*\[rows, cols\]"),
        ("softmax", [(5,)], r"x has 1 dimensions, .* it must be \[rows, cols\]"),
        ("softmax", [torch.zeros(5, 3).T], r"x of shape .* is not contiguous"),
        ("gemm_nt", [(5, 7), (2, 5, 7)], r"a has 2 dimensions, .* it must be \[batch, M, K\]"),
        ("gemm_nt", [torch.zeros(2, 5, 7).half()] * 2, "a has dtype Half; it must be Float"),
        ("softmax_step", [(2, 3), 4], r"step is 4; it must be 1 \.\. 3"),
        ("softmax_step", [(2, 3), 0], r"step is 0; it must be 1 \.\. 3"),
        ("gemm_nt", [(2, 3, 4), (2, 5, 6)], "dimension 2 of a"),
        ("gemm_nn", [(2, 3, 4), (2, 5, 6)], "dimension 2 of a .* dimension 1 of b"),
        ("gemm_nn", [(2, 3, 4), (1, 4, 6)], "dimension 0 of a"),
        ("gemm_nn_step", [(1, 3, 4), (1, 4, 6), 5], r"step is 5; it must be 1 \.\. 4"),
        ("gemm_nt", [(0, 3, 4), (0, 5, 4)], "so batch is 0"),
    ],
)
def test_a_bad_argument_is_named(tuned, operator, arguments, words):
    given = [torch.zeros(x) if isinstance(x, tuple) else x for x in arguments]
    given = [x.to(tuned.device) if isinstance(x, Tensor) else x for x in given]
    with pytest.raises(ValueError, match=words):
        getattr(tuned, operator)(*given)


@pytest.mark.slow
def test_no_race_and_no_stray_access():
    """The checked simulator finds nothing: both buffers, both kinds of loading, ragged edges, all reductions."""
    ops = load(BuildRequest("task2", "tuned", "simulator", checked=True))
    step = lambda ops, a, b: ops.gemm_nt_step(a, b, 3)  # noqa: E731
    cases = [
        softmax_case(10),
        softmax_case(1000),
        softmax_case(2050, rows=1),
        softmax_case(33_000, rows=1),
        gemm_case("gemm_nn", 66, 65, 27),
        gemm_case("gemm_nt", 66, 65, 27),
        gemm_case("gemm_nn", 68, 64, 24),
        gemm_case("gemm_nt", 68, 64, 24),
        gemm_case("gemm_nt", 130, 128, 24, call=step),
    ]
    for case in cases:
        with nothing_found(ops):
            assert_passes(case, ops)


@pytest.mark.gpu
def test_more_than_2_31_elements():
    """Offsets must not overflow; the last slice is compared, where overflow would show."""
    if torch.cuda.mem_get_info()[0] < 60 * 2**30:
        pytest.skip("needs 60 GiB of free GPU memory")
    ops = load(BuildRequest("task2", "tuned"))
    for rows, cols in [(1_100_000, 2048), (33_000, 65_536)]:
        x = torch.randn(rows, cols, device="cuda")
        out = ops.softmax(x)
        assert out.numel() > 2**31
        torch.testing.assert_close(out[-1].double(), reference.softmax(x[-1].double()), rtol=1e-4, atol=1e-6)
    del x, out
    a, b = torch.randn(2100, 1024, 8, device="cuda"), torch.randn(2100, 8, 1024, device="cuda")
    expected = a[-1].double() @ b[-1].double()
    torch.testing.assert_close(ops.gemm_nn(a, b)[-1].double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ops.gemm_nt(a, b.mT.contiguous())[-1].double(), expected, rtol=1e-4, atol=1e-4)
    torch.cuda.empty_cache()


def test_more_rows_than_a_grid_has_blocks(device, tmp_path):
    x = torch.from_file(str(tmp_path / "rows"), shared=True, size=2**31)  # a sparse file takes no memory
    with pytest.raises(ValueError, match=r"x has rows = 2147483648; at most 2\^31 - 1 is supported"):
        softmax((x if device == "cpu" else torch.empty_like(x, device=device)).view(-1, 1))

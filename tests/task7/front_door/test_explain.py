"""explain: the kernel a call gets, what is copied, what would be faster, and the counts, worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.bias import causal_lower_right

from task7.front_door import explain, scaled_dot_product_attention
from task7.front_door.taught import MODES


def of(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, device=device)


@pytest.mark.parametrize("mode", MODES)
def test_a_taught_kernel(mode):
    found = explain(of(2, 3, 5, 8), of(2, 3, 7, 8), of(2, 3, 7, 8), mode=mode, variant="solution")
    assert found.kernel == f"{MODES[mode].task} {MODES[mode].operator}" and found.variant == "solution"
    assert found.copies == () and found.faster == ("mode='flash' with variant='tuned' runs the fast kernels",)
    assert found.operations == 4 * 2 * 3 * 5 * 7 * 8
    assert found.least_bytes == 4 * 2 * 3 * 8 * (5 + 7 + 7 + 5)
    assert found.seconds is found.limit is found.share is None
    assert "not measured: on the CPU the kernels run in the simulator" in str(found)


@pytest.mark.parametrize(("seq_q", "seq_k", "pairs"), [(3, 5, 6), (5, 3, 6 + 2 * 3), (4, 4, 10)])
def test_pairs_under_a_causal_mask(seq_q, seq_k, pairs):
    """Counted one by one: query i sees the keys 0 .. i."""
    assert pairs == sum(min(i + 1, seq_k) for i in range(seq_q))
    found = explain(of(1, 1, seq_q, 4), of(1, 1, seq_k, 4), of(1, 1, seq_k, 4), is_causal=True, mode="naive")
    assert found.operations == 4 * pairs * 4


@pytest.mark.parametrize(("seq_q", "seq_k", "pairs"), [(3, 5, 3 + 4 + 5), (5, 3, 0 + 0 + 1 + 2 + 3)])
def test_pairs_under_a_mask_aligned_to_the_lower_right(seq_q, seq_k, pairs):
    tensors = of(1, 1, seq_q, 4), of(1, 1, seq_k, 4), of(1, 1, seq_k, 4)
    found = explain(*tensors, causal_lower_right(seq_q, seq_k), variant="tuned")
    assert found.operations == 4 * pairs * 4 and found.least_bytes == 4 * 4 * 2 * (seq_q + seq_k)


@pytest.mark.parametrize("lower_right", [False, True])
@pytest.mark.parametrize("window_size", [(2, 1), (-1, 1), (3, -1), (0, 0)], ids=str)
def test_pairs_in_a_window(window_size, lower_right):
    query, key = of(1, 1, 5, 4), of(1, 1, 8, 4)
    left, right = (100 if x < 0 else x for x in window_size)
    for causal in (False, True):
        at = [i + (3 if lower_right else 0) for i in range(5)]
        pairs = sum(i - left <= j <= i + (0 if causal else right) for i in at for j in range(8))
        found = explain(query, key, key, is_causal=causal, window_size=window_size, lower_right=lower_right)
        assert found.operations == 4 * pairs * 4
        assert found.faster[0].startswith("without window_size: ")


def test_copies():
    strided = of(2, 7, 3, 8).transpose(1, 2)
    half = of(2, 3, 7, 8, dtype=torch.float16)
    found = explain(of(2, 3, 5, 8), strided, of(7, 4), mode="tiled")
    assert found.copies == (
        f"key: strides {list(strided.stride())}, and it must be contiguous",
        "value: its heads repeated, or its batch broadcast, head_dim filled up with zeros to 8",
    )
    assert explain(half, half, half, mode="tiled").copies == tuple(
        f"{name}: float16 to float32" for name in ("query", "key", "value")
    )
    assert explain(half, half, half, mode="flash", variant="tuned").copies == ()
    assert explain(of(2, 3, 5, 8), strided, strided, mode="flash", variant="tuned").copies == ()


def test_the_kernel_of_tuned_calls_and_what_would_be_faster():
    half = of(1, 2, 5, 8, dtype=torch.float16)
    single = half.float()
    assert explain(half, half, half, variant="tuned").kernel == "mma"
    assert explain(half, half, half, variant="tuned").faster == ()  # the simulator has no wgmma
    found = explain(single, single, single, variant="tuned")
    assert found.kernel == "3xfp16"
    assert found.faster == ("in float16 or bfloat16: mma (tensor cores, 16 bits)",)
    mask = torch.zeros(5, 5)
    found = explain(single, single, single, mask)
    assert found.variant == "tuned" and found.least_bytes == 4 * (4 * 2 * 5 * 8 + 25)


def test_what_cannot_be_explained():
    with pytest.raises(ValueError, match="there is nothing to explain"):
        explain(of(1, 2, 0, 8), of(1, 2, 5, 8), of(1, 2, 5, 8))
    with pytest.raises(ValueError, match="mode is 'fast'"):
        explain(of(1, 2, 5, 8), of(1, 2, 5, 8), of(1, 2, 5, 8), mode="fast")


@pytest.mark.gpu
def test_on_a_gpu():
    """The share is of a measured rate, so it is above 0 and about 1 at most; the suggested change does give wgmma."""
    query, key, value = (of(2, 4, 512, 60, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    found = explain(query, key, value, is_causal=True, variant="tuned")
    assert 0 < found.share <= 1.05 and found.limit in ("memory", "arithmetic") and found.seconds > 0
    assert str(found).count("\n") == 2 + len(found.faster)
    if torch.cuda.get_device_capability()[0] == 9:
        assert found.kernel == "plain"
        assert found.faster[0].startswith("with contiguous inputs of head_dim 64")
        wide = [torch.nn.functional.pad(x, (0, 4)) for x in (query, key, value)]
        assert explain(*wide, is_causal=True, variant="tuned").kernel == "wgmma"
    out = scaled_dot_product_attention(query, key, value, is_causal=True, variant="tuned")
    assert out.shape == query.shape


def test_kernels_with_options():
    """The names of options, and which kernel would run without them."""
    half = of(1, 2, 5, 8, dtype=torch.float16)
    found = explain(half, half, half, softcap=2.0, sinks=torch.zeros(2))
    assert (found.kernel, found.variant, found.faster) == ("mma", "tuned", ())
    single = of(1, 2, 5, 200)
    found = explain(single, single, single, dropout_p=0.1)
    assert found.kernel == "plain"
    assert found.faster[0].startswith("without dropout_p and with head_dim up to 128: 3xfp16")
    assert explain(single, single, single, variant="tuned").faster[0].startswith("with head_dim up to 128: ")
    assert found.operations == 4 * 2 * 5 * 5 * 200
    assert "kernel    plain (every type, option and layout, one tile at a time)" in str(found)

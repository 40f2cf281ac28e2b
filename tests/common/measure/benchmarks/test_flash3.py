"""FlashAttention-3 as a peer: replaced by a module with its name and dimension order."""

import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from common.compiling.toolchain import ToolchainError
from common.measure.benchmarks import flash, flash3
from common.measure.benchmarks.flash import PASSES, Problem


def attention(query, key, value, causal=False):
    """[batch, seq_len, heads, head_dim], as in the package."""
    by_head = [x.transpose(1, 2) for x in (query, key, value)]
    return F.scaled_dot_product_attention(*by_head, is_causal=causal).transpose(1, 2)


@pytest.fixture(params=["out", "out and lse"])
def installed(request, monkeypatch):
    module = ModuleType(flash3.MODULE)
    module.__spec__ = object()  # find_spec() requires it of a loaded module
    older = request.param != "out"
    module.flash_attn_func = lambda *x, causal: (attention(*x, causal), None) if older else attention(*x, causal)
    monkeypatch.setitem(sys.modules, flash3.MODULE, module)


@pytest.mark.parametrize("direction", PASSES)
@pytest.mark.parametrize("causal", [False, True])
def test_it_computes_attention(installed, direction, causal):
    one = Problem(direction, "bf16", 64, causal, seq_len=33, batch=2, heads=3)
    inputs = one.make_inputs("cpu")
    sample = one.sample(inputs)
    call = flash.peers(one)["fa3"].prepare(*inputs)
    for _ in range(2):
        errors = sample.compare(call())
        assert errors.ok, errors


def test_it_is_a_peer_in_16_bits(installed):
    for dtype, there in (("fp32", False), ("fp16", True), ("bf16", True)):
        assert ("fa3" in flash.peers(Problem("forward", dtype, 64, False, 33, 2, 3))) is there


@pytest.mark.skipif(flash3.is_installed(), reason="FlashAttention-3 is installed")
def test_where_it_is_not_installed():
    assert "fa3" not in flash.peers(Problem("forward", "bf16", 64, False, 33, 2, 3))
    with pytest.raises(ToolchainError, match=r"--versions fa3 needs FlashAttention-3.*flash_attn_interface"):
        flash3.require()


def test_a_copy_in_its_order_is_made_before_the_call(installed, monkeypatch):
    seen = []
    module = sys.modules[flash3.MODULE]
    monkeypatch.setattr(module, "flash_attn_func", lambda *x, causal: seen.extend(x) or x[0])
    one = Problem("forward", "bf16", 64, False, 33, 2, 3)
    inputs = one.make_inputs("cpu")
    flash.peers(one)["fa3"].prepare(*inputs)()
    assert all(x.is_contiguous() and x.shape == (2, 33, 3, 64) for x in seen)
    assert all(torch.equal(x.transpose(1, 2), given) for x, given in zip(seen, inputs, strict=False))

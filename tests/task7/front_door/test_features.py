"""The table of features in task7/front_door/README.md: our column, row by row, is what happens.

A row that "has" a feature is compared with PyTorch's function or with another oracle; one that is "refused" raises an
error in words; the table and the checks below have the same rows.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from attention_oracle import exact, seen_of
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch_operators import padded, tiny_model, tokens

from common.console.paths import ROOT
from common.kernels.attention import (
    attention,
    attention_varlen,
    attention_with_kvcache,
    block_sparse_attention,
    compress_block_mask,
    quantized_dropout,
)
from common.kernels.decode.cache import KVCache
from common.kernels.decode.decode import update_cache_rotary
from common.kernels.loaded import loaded
from task7.front_door import CUDAAttention, export_onnx, register, scaled_dot_product_attention

CHECKS: dict[str, tuple[str, Callable[[], None]]] = {}
S, HEAD_DIM = 7, 8


def has(feature: str):
    return lambda check: CHECKS.setdefault(feature, ("has", check))


def refused(feature: str, error: type[Exception], words: str):
    """The check must raise this."""

    def take(check):
        def raises() -> None:
            with pytest.raises(error, match=words):
                check()

        return CHECKS.setdefault(feature, ("refused", raises))

    return take


def inputs(*sizes: tuple[int, ...], dtype: torch.dtype = torch.float32, gradients: bool = False) -> list[Tensor]:
    """query, key, value of these sizes; [1, 2, 7, 8] unless given."""
    sizes = sizes or [(1, 2, S, HEAD_DIM)] * 3
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator).to(dtype).requires_grad_(gradients) for size in sizes]


def assert_as_pytorch(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **options) -> None:
    own = {name: options.pop(name) for name in ("mode", "variant") if name in options}
    with sdpa_kernel(SDPBackend.MATH):
        expected = F.scaled_dot_product_attention(*(x.double() for x in (query, key, value)), mask, **options)
    for variant in (None, "tuned"):
        out = scaled_dot_product_attention(query, key, value, mask, **options, **({"variant": variant} | own))
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


@has("causal, from the upper left")
def _():
    assert_as_pytorch(*inputs((1, 2, 5, 8), (1, 2, S, 8), (1, 2, S, 8)), is_causal=True)


@has("causal, from the lower right")
def _():
    query, key, value = inputs((1, 2, 5, 8), (1, 2, S, 8), (1, 2, S, 8))
    mask = torch.ones(5, S, dtype=torch.bool).tril(S - 5)
    expected = F.scaled_dot_product_attention(query, key, value, mask)
    for variant in (None, "tuned"):
        out = scaled_dot_product_attention(query, key, value, causal_lower_right(5, S), variant=variant)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@has("a mask tensor, bool or added")
def _():
    mask = torch.rand(2, S, S, generator=torch.Generator().manual_seed(1)) < 0.7
    assert_as_pytorch(*inputs(), mask, mode="naive", variant="solution")
    assert_as_pytorch(*inputs(), mask)
    added = torch.randn(S, S)
    expected = F.scaled_dot_product_attention(*inputs(), added)
    torch.testing.assert_close(scaled_dot_product_attention(*inputs(), added), expected, rtol=1e-5, atol=1e-5)


@refused("gradient of an added mask", ValueError, "attn_mask requires a gradient, and no kernel here computes one")
def _():
    scaled_dot_product_attention(*inputs(), torch.zeros(S, S, requires_grad=True))


@has("fewer heads of keys (GQA)")
def _():
    assert_as_pytorch(*inputs((1, 4, S, 8), (1, 2, S, 8), (1, 2, S, 8)), enable_gqa=True)


@has("float32")
def _():
    assert_as_pytorch(*inputs())


@refused("float64", ValueError, "query has dtype torch.float64; it must be")
def _():
    scaled_dot_product_attention(*inputs(dtype=torch.float64))


@has("head_dim up to 128")
def _():
    for head_dim in (1, 72, 128):
        assert_as_pytorch(*inputs(*[(1, 1, S, head_dim)] * 3))


@has("head_dim up to 256")
def _():
    for head_dim in (129, 256):
        assert_as_pytorch(*inputs(*[(1, 1, S, head_dim)] * 3))


@has("values of another head_dim")
def _():
    assert_as_pytorch(*inputs((1, 2, S, 8), (1, 2, S, 8), (1, 2, S, 20)))


@has("rows that see no key are zeros")
def _():
    mask = torch.ones(S, S, dtype=torch.bool)
    mask[2] = False
    for mode, variant in (("naive", None), ("tiled", None), ("flash", "tuned")):
        out = scaled_dot_product_attention(*inputs(), mask, mode=mode, variant=variant)
        assert bool((out[:, :, 2] == 0).all()) and bool((out[:, :, 3] != 0).any())


@has("NaN at hidden keys reaches nobody, tuned")
def _():
    query, key, value = inputs()
    clean = scaled_dot_product_attention(query, key, value, is_causal=True, variant="tuned")
    key[:, :, 4, 1] = value[:, :, 4, 1] = math.nan
    out = scaled_dot_product_attention(query, key, value, is_causal=True, variant="tuned")
    torch.testing.assert_close(out[:, :, :4], clean[:, :, :4])
    assert bool(out[:, :, 4:, 1].isnan().all())


@has("NaN at hidden keys reaches no gradient, tuned")
def _():
    seen = torch.arange(S) != 4
    for hidden in (
        {"is_causal": True},
        {"attn_mask": seen.expand(S, S)},
        {"attn_mask": seen.expand(S, S), "softcap": 3.0},
    ):
        keys = (
            seen if "attn_mask" in hidden else torch.arange(S) < 4
        )  # the rows before the bad key, and what only they see
        query, key, value = inputs()
        grads = []
        for fill in (0.0, math.nan):
            spoilt = (x.masked_fill((torch.arange(S) == 4)[:, None], fill) for x in (key, value))
            leaves = [query.clone().requires_grad_(), *(x.requires_grad_() for x in spoilt)]
            out = scaled_dot_product_attention(*leaves, variant="tuned", **hidden)
            grads.append(torch.autograd.grad(out, leaves, torch.ones_like(out)))
        torch.testing.assert_close(grads[1][0][:, :, keys], grads[0][0][:, :, keys])
        if "attn_mask" in hidden:
            for found, expected in zip(*grads, strict=True):
                torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "options",
    [{"softcap": 3.0}, {"sinks": torch.zeros(2)}, {"dropout_p": 0.3}, {"head_dim": 136}, {"window_size": (S, S)}],
    ids=str,
)
def test_nan_at_hidden_keys_under_options(options):
    """It reaches neither results nor gradients of the kernels that the options have; padding hides the key."""
    head_dim = options.get("head_dim", 16)
    options = {name: x for name, x in options.items() if name != "head_dim"}
    seen = torch.arange(S) != 4
    results = []
    for fill in (0.0, math.nan):
        query, key, value = inputs(*[(1, 2, S, head_dim)] * 3)
        leaves = [x.requires_grad_() for x in (query, *(x.masked_fill(~seen[:, None], fill) for x in (key, value)))]
        torch.manual_seed(0)
        out = scaled_dot_product_attention(*leaves, seen.expand(S, S), variant="tuned", **options)
        results.append((out.detach(), *torch.autograd.grad(out.square().sum(), leaves)))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def gradients_of(function, *tensors: Tensor, **options) -> tuple[Tensor, ...]:
    return torch.autograd.grad(function(*tensors, **options).square().sum(), tensors)


@has("gradients")
def _():
    tensors = inputs(gradients=True)
    found = gradients_of(scaled_dot_product_attention, *tensors, is_causal=True)
    expected = gradients_of(F.scaled_dot_product_attention, *tensors, is_causal=True)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


@has("the same bits of gradients every time")
def _():
    tensors = inputs(*[(1, 1, 150, 8)] * 3, gradients=True)
    first, *others = (gradients_of(scaled_dot_product_attention, *tensors, deterministic=True) for _ in range(4))
    assert all(torch.equal(x, y) for other in others for x, y in zip(first, other, strict=True))


@refused("second derivatives", NotImplementedError, "no second derivative")
def _():
    tensors = inputs(gradients=True)
    out = scaled_dot_product_attention(*tensors)
    (grad,) = torch.autograd.grad(out.square().sum(), tensors[:1], create_graph=True)
    grad.sum().backward()


@refused("forward mode (jvp)", NotImplementedError, "no forward-mode derivative")
def _():
    query, key, value = inputs()
    torch.func.jvp(lambda x: scaled_dot_product_attention(x, key, value), (query,), (query,))


@has("torch.func.grad and vmap")
def _():
    tensors = inputs(*[(3, 1, 2, S, 8)] * 3)
    found, expected = (
        torch.vmap(torch.func.grad(lambda *x, f=f: f(*x).square().sum()))(*tensors)
        for f in (scaled_dot_product_attention, torch_math)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for options in ({"softcap": 0.7}, {"sinks": torch.tensor([-1.0, 2.0])}, {"window_size": (2, 1)}):

        def total(*x: Tensor, options=options) -> Tensor:
            return scaled_dot_product_attention(*x, **options).square().sum()

        found = torch.vmap(torch.func.grad(total, (0, 1, 2)))(*tensors)
        alone = [[x[i].detach().requires_grad_() for x in tensors] for i in range(3)]
        expected = [torch.autograd.grad(total(*x), x) for x in alone]
        torch.testing.assert_close(found, tuple(torch.stack(x) for x in zip(*expected, strict=True)))


def torch_math(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT / query.size(-1) ** 0.5).softmax(-1) @ value


@has("dropout")
def _():
    """Values that are a unit matrix show the weights: PyTorch's over 1 - p, or 0, the same ones in the gradient."""
    query, key, _ = inputs((1, 2, S, HEAD_DIM), (1, 2, HEAD_DIM, HEAD_DIM), (1, 2, HEAD_DIM, HEAD_DIM))
    value = torch.eye(HEAD_DIM).expand(1, 2, -1, -1).contiguous().requires_grad_()
    torch.manual_seed(0)
    out = scaled_dot_product_attention(query, key, value, dropout_p=0.3)
    weights = F.scaled_dot_product_attention(query, key, value)
    kept = out != 0
    assert 0 < int(kept.sum()) < kept.numel()
    torch.testing.assert_close(out[kept], weights[kept] / (1 - quantized_dropout(0.3)), rtol=1e-5, atol=1e-5)
    (found,) = torch.autograd.grad(out.sum(), [value])
    torch.testing.assert_close(found, out.mT.sum(-1, keepdim=True).expand_as(found), rtol=1e-5, atol=1e-5)


def assert_as_written_out(tensors: list[Tensor], seen: Tensor, **options) -> None:
    """Result and gradients beside float64. options: softcap and sinks, and of the function alone those of `how`."""
    how, sinks = options.pop("how", {}), options.get("sinks")
    leaves = [*tensors, *([] if sinks is None else [sinks])]
    found, expected = scaled_dot_product_attention(*tensors, **how, **options), exact(*tensors, seen, **options)[0]
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    grads = (torch.autograd.grad(x.square().sum(), leaves) for x in (found, expected))
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


@has("sliding window")
def _():
    tensors = inputs(dtype=torch.float16)
    out = attention(*tensors, is_causal=True, window_size=(2, 0), kernel="sparse")
    expected, _ = exact(*tensors, seen_of(S, S, True, (2, 0)))
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=0.01)


@has("gradients of a sliding window")
def _():
    how = {"is_causal": True, "window_size": (2, -1)}
    assert_as_written_out(inputs(gradients=True), seen_of(S, S, **how), how=how)
    with pytest.raises(ValueError, match=r"no kernel takes this call: 'sparse' \(a gradient may be asked for\)"):
        tensors = inputs(dtype=torch.float16, gradients=True)
        attention(*tensors, is_causal=True, window_size=(2, 0), kernel="sparse")


@has("windows of two widths, left and right")
def _():
    for how in ({"window_size": window} for window in ((3, 1), (0, 2), (-1, 1), (2, -1))):
        assert_as_written_out(inputs(gradients=True), seen_of(S, S, **how), how=how)


@has("windows from the lower right")
def _():
    how = {"window_size": (2, 1), "lower_right": True}
    for seq_q, seq_k in ((4, 9), (9, 4)):
        tensors = inputs((1, 2, seq_q, 8), (1, 2, seq_k, 8), (1, 2, seq_k, 8), gradients=True)
        assert_as_written_out(tensors, seen_of(seq_q, seq_k, **how), how=how)


BLOCKS = torch.tensor([[[True, False], [True, True]]])


@has("blocks from a mask")
def _():
    tensors = inputs(*[(1, 1, 64, 8)] * 3, dtype=torch.float16)
    expected, _ = exact(*tensors, BLOCKS.repeat_interleave(32, 1).repeat_interleave(32, 2))
    torch.testing.assert_close(block_sparse_attention(*tensors, BLOCKS).double(), expected, rtol=0, atol=0.01)


@has("gradients of blocks from a mask")
def _():
    seen = BLOCKS.repeat_interleave(32, 1).repeat_interleave(32, 2).tril()
    for dtype, atol in ((torch.float32, 1e-5), (torch.float16, 0.03)):
        tensors = inputs(*[(1, 1, 64, 8)] * 3, dtype=dtype, gradients=True)
        outs = block_sparse_attention(*tensors, compress_block_mask(BLOCKS), is_causal=True), exact(*tensors, seen)[0]
        for x, y in zip(*(torch.autograd.grad(x.double().square().sum(), tensors) for x in outs), strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=atol)


@has("a cap on the scores (softcap)")
def _():
    assert_as_written_out(inputs(gradients=True), seen_of(S, S), softcap=0.5)


@has("attention sinks")
def _():
    sinks = torch.tensor([-1.0, 2.0], requires_grad=True)
    assert_as_written_out(inputs(gradients=True), seen_of(S, S), sinks=sinks)


@has("packed sequences without padding")
def _():
    query, key, value = inputs(*[(9, 2, HEAD_DIM)] * 3, gradients=True)
    out = attention_varlen(query, key, value, torch.tensor([0, 5, 9]), is_causal=True)
    parts = [
        F.scaled_dot_product_attention(*(x[rows].transpose(0, 1) for x in (query, key, value)), is_causal=True)
        for rows in (slice(0, 5), slice(5, 9))
    ]
    expected = torch.cat(parts, 1).transpose(0, 1)
    grads = (torch.autograd.grad(x.square().sum(), (query, key, value)) for x in (out, expected))
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


@refused("nested tensors", ValueError, "query is nested; it must be dense")
def _():
    nested = torch.nested.nested_tensor([torch.randn(5, 8), torch.randn(3, 8)], layout=torch.jagged)
    scaled_dot_product_attention(nested, nested, nested)


@has("one token over a KV cache, and in pages")
def _():
    query, key, value = inputs((1, 2, 1, 8), (1, 2, 32, 8), (1, 2, 32, 8))
    lengths = torch.tensor([21], dtype=torch.int32)
    expected = F.scaled_dot_product_attention(query, key[:, :, :21], value[:, :, :21])
    out = attention_with_kvcache(query, key, value, cache_seqlens=lengths)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    pages = [x[0].unflatten(1, (2, 16)).transpose(0, 1).contiguous() for x in (key, value)]
    table = torch.tensor([[0, 1]], dtype=torch.int32)
    out = attention_with_kvcache(query, *pages, cache_seqlens=lengths, block_table=table)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@has("pages of 16 to 256 tokens, strided queries")
def _():
    query, key, value = inputs((2, 9, 1, 8), (2, 2, 512, 8), (2, 2, 512, 8))
    query = query[:, 1:5]  # of 9 heads
    lengths = torch.tensor([301, 20], dtype=torch.int32)
    seen = (torch.arange(512) < lengths[:, None])[:, None, None]
    expected = F.scaled_dot_product_attention(query, key, value, seen, enable_gqa=True)
    out = attention_with_kvcache(query, key, value, cache_seqlens=lengths)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    for page_size in (16, 32, 64, 128, 256):
        pages = [x.unflatten(2, (-1, page_size)).transpose(1, 2).flatten(0, 1).contiguous() for x in (key, value)]
        table = torch.arange(len(pages[0]), dtype=torch.int32).view(2, -1)
        out = attention_with_kvcache(query, *pages, cache_seqlens=lengths, block_table=table)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@has("rotary embedding and left padding in the cache update")
def _():
    query, key, value = inputs((1, 4, S, 8), (1, 2, S, 8), (1, 2, S, 8))
    angles = torch.rand(32, 4, generator=torch.Generator().manual_seed(1)) * 6
    caches = torch.zeros(2, 1, 2, 32, 8)
    zero, padding = torch.tensor([[0], [2]], dtype=torch.int32)
    rotated = update_cache_rotary(query, *caches, key, value, zero, angles.cos(), angles.sin(), False, padding)
    turn = torch.polar(torch.ones(()), angles[: S - 2])
    expected = [torch.complex(*x[:, :, 2:].chunk(2, -1)) * turn for x in (query, key)]
    expected = [torch.cat((x.real, x.imag), -1) for x in expected]
    torch.testing.assert_close(rotated[:, :, 2:], expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(caches[0, :, :, : S - 2], expected[1], rtol=1e-5, atol=1e-5)
    assert torch.equal(caches[1, :, :, : S - 2], value[:, :, 2:]) and not caches[:, :, :, S - 2 :].any()
    cache = KVCache(loaded("decode", "cpu"), 1, 2, 32, 8)
    assert torch.equal(cache.append_rotary(query, key, value, angles.cos(), angles.sin(), left_padding=[2]), rotated)
    assert torch.equal(cache.k[:, :, : S - 2], caches[0, :, :, : S - 2]) and cache.lengths.tolist() == [S - 2]


@has("a position bias (T5)")
def _():
    course = register(variant="tuned", backend="simulator")
    query, key, value, bias = inputs(*[(1, 2, S, HEAD_DIM)] * 3, (1, 2, S, S), gradients=True)
    out, _ = course.forward(torch.nn.Module(), query, key, value, None, scaling=1.0, position_bias=bias.detach())
    found = torch.autograd.grad(out.square().sum(), (query, key, value))
    mask = bias.detach().masked_fill(~torch.ones(S, S, dtype=torch.bool).tril(), -math.inf)
    expected = F.scaled_dot_product_attention(query, key, value, mask, scale=1.0)
    torch.testing.assert_close(out.transpose(1, 2), expected, rtol=1e-5, atol=1e-5)
    right = torch.autograd.grad(expected.square().sum(), (query, key, value))
    for x, y in zip(found, right, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@refused("gradient of a position bias", ValueError, "a gradient of the position bias .*requires_grad_")
def _():
    course = register(variant="tuned", backend="simulator")
    query, key, value, bias = inputs(*[(1, 2, S, HEAD_DIM)] * 3, (1, 2, S, S), gradients=True)
    course.forward(torch.nn.Module(), query, key, value, None, position_bias=bias)


@has("torch.compile of the options, gradients too")
def _():
    cu_seqlens = torch.tensor([0, 5, 9], dtype=torch.int32)
    sinks = torch.tensor([-1.0, 2.0])

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        total = torch.zeros(())
        for options in ({"softcap": 0.7}, {"sinks": sinks}, {"dropout_p": 0.3}, {"window_size": (3, 1)}):
            total = total + scaled_dot_product_attention(query, key, value, **options).square().sum()
        rows = (x[0].transpose(0, 1) for x in (query, key, value))
        return total + attention_varlen(*rows, cu_seqlens, is_causal=True, window_size=(3, -1)).square().sum()

    tensors = inputs(*[(1, 2, 9, HEAD_DIM)] * 3, gradients=True)
    attend(*tensors)  # builds
    torch.compiler.reset()
    results = []
    for function in (attend, torch.compile(attend, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(0)
        total = function(*tensors)
        results.append((total.detach(), *torch.autograd.grad(total, tensors)))
    torch.testing.assert_close(*results)


def tiny_models() -> tuple[torch.nn.Module, torch.nn.Module]:
    """The same GPT-2, through the tuned kernels and through SDPA."""
    theirs = tiny_model("gpt2", attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0).train()
    ours = copy.deepcopy(theirs)
    register(variant="tuned")
    ours.set_attn_implementation("course")
    return ours, theirs


@has("a transformers model in one graph, padded too")
def _():
    ours, theirs = tiny_models()
    torch.compiler.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    ids = tokens(2, 9)
    for mask in (None, padded(ids, 4, 9)[1], padded(ids, 7, 9)[1]):
        seen = slice(None) if mask is None else mask.bool()
        found, expected = (x(ids, attention_mask=mask, use_cache=False).logits[seen] for x in (compiled, theirs))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@has("training a transformers model")
def _():
    """Three steps of an optimizer: the losses are sdpa's."""
    ids, losses = tokens(2, 9), []
    for model in tiny_models():
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        of_model = []
        for _ in range(3):
            loss = model(ids, labels=ids, use_cache=False).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            of_model.append(loss.item())
        losses.append(of_model)
    assert losses[0][2] < losses[0][0]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


@has("torch.compile in one graph, torch.export")
def _():
    module, tensors = CUDAAttention(is_causal=True, variant="tuned"), tuple(inputs())
    expected = module(*tensors)
    torch.compiler.reset()
    assert torch.equal(torch.compile(module, fullgraph=True, backend="aot_eager")(*tensors), expected)
    assert torch.equal(torch.export.export(module, tensors).module()(*tensors), expected)


@has("ONNX, as the standard operator")
def _():
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install -e '.[export]'")
    program = export_onnx(CUDAAttention(is_causal=True, variant="tuned"), tuple(inputs()))
    assert "Attention" in {node.op_type for node in program.model_proto.graph.node}


@has("runs without a GPU")
def _():
    assert scaled_dot_product_attention(*inputs()).device.type == "cpu"


def table() -> dict[str, str]:
    """Feature -> what our column begins with."""
    text = (ROOT / "task7" / "front_door" / "README.md").read_text()
    rows = re.search(r"\| feature \| ours \|(.*?)\n\n", text, re.DOTALL)[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if row.startswith("|")]
    assert {len(row) for row in cells} == {8}
    return {row[0]: row[1].split(",")[0] for row in cells}


def test_the_table_and_the_checks_have_the_same_rows():
    assert table() == {feature: answer for feature, (answer, _) in CHECKS.items()}


@pytest.mark.parametrize("feature", CHECKS)
def test_a_row_of_the_table(feature):
    CHECKS[feature][1]()

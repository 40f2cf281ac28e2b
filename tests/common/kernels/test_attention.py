"""The public API, common/kernels/attention.py, against PyTorch in float64: its options, kernels, shapes and errors.

What attention shares with scaled_dot_product_attention (layouts, broadcasting, autocast, torch.compile, torch.func) is
tested through the latter: tests/task7/front_door/test_sdpa.py.
"""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from attention_oracle import exact, seen_of
from torch import Tensor

from common.kernels import attention_kernels
from common.kernels.attention import (
    attention,
    attention_varlen,
    attention_with_kvcache,
    block_sparse_attention,
    compress_block_mask,
    dropout_mask,
    explain,
    quantized_dropout,
)
from common.kernels.decode.decode import update_cache

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
HALF = [torch.float16, torch.bfloat16]


def tensors(device: str, seq_q: int, seq_k: int, dtype=torch.float32, batch: int = 2, head_dim: int = HEAD_DIM):
    """query, key and value that require gradients; heads share keys."""
    generator = torch.Generator().manual_seed(seq_q + 100 * seq_k)
    sizes = (HEADS, seq_q), (KV_HEADS, seq_k), (KV_HEADS, seq_k)
    shapes = ((batch, heads, seq, head_dim) for heads, seq in sizes)
    return [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_() for shape in shapes]


def assert_right(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], inputs: list[Tensor], tolerance: float):
    """Output, logsumexp and the gradients of all inputs."""
    (out, lse), (right, right_lse) = found, expected
    assert out.shape == right.shape and out.dtype == inputs[0].dtype and out.is_contiguous()
    assert lse.shape == right.shape[:-1] and lse.dtype == torch.float32 and not lse.requires_grad
    torch.testing.assert_close(out.double(), right, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.double(), right_lse.detach(), rtol=1e-5, atol=1e-5)
    if out.requires_grad:
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
        grads = torch.autograd.grad(out, inputs, grad), torch.autograd.grad(right, inputs, grad.double())
        for x, y in zip(*grads, strict=True):
            torch.testing.assert_close(x, y, rtol=10 * tolerance, atol=10 * tolerance)


# ---- attention

CALLS = {
    "plain": {},
    "causal": {"is_causal": True},
    "lower right": {"is_causal": True, "lower_right": True},
    **{f"window {x}": {"window_size": x} for x in ((3, 1), (0, 0), (-1, 2), (2, -1), (50, 50))},
    **{f"causal window {x}": {"window_size": x, "is_causal": True} for x in ((3, 1), (2, -1))},
    "window from the lower right": {"window_size": (3, 1), "lower_right": True},
    "causal window from the lower right": {"window_size": (3, -1), "is_causal": True, "lower_right": True},
    "stride": {"key_stride": 3, "key_offset": 1},
    "causal stride": {"key_stride": 3, "key_offset": 2, "is_causal": True},
    "softcap": {"softcap": 0.7},
    "softcap, sinks, window": {"softcap": 0.7, "sinks": True, "window_size": (4, 4)},
    "sinks": {"sinks": True, "is_causal": True, "scale": 0.3},
    "head_dim 160": {"head_dim": 160},
}


@pytest.mark.parametrize("sizes", [(9, 9), (5, 12), (12, 5)], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_every_option(device, name, sizes):
    """Output, logsumexp and gradients, including sinks, with more keys than queries and fewer."""
    options = dict(CALLS[name])
    inputs = tensors(device, *sizes, head_dim=options.pop("head_dim", HEAD_DIM))
    if options.get("sinks"):
        options["sinks"] = torch.linspace(-1, 2, HEADS).to(device).requires_grad_()
        inputs.append(options["sinks"])
    found = attention(*inputs[:3], enable_gqa=True, return_lse=True, **options)
    where = {name: options.pop(name) for name in ("is_causal", "window_size", "lower_right") if name in options}
    seen = seen_of(*sizes, **where, stride=options.pop("key_stride", 1), offset=options.pop("key_offset", 0))
    assert_right(found, exact(*inputs[:3], seen, **options), inputs, 1e-5)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(
    "name", ["window (0, 0)", "causal window (2, -1)", "window from the lower right", "causal stride"]
)
def test_windows_and_strides_in_16_bits_without_gradients(device, dtype, name):
    """With the flash kernels where they support the call, and the same with the others."""
    inputs, options = [x.detach() for x in tensors(device, 21, 21, dtype)], CALLS[name]
    expected = exact(*inputs, seen_of(21, 21, **{name.removeprefix("key_"): x for name, x in options.items()}))
    for kernel in (None, "flash"):
        found = attention(*inputs, enable_gqa=True, return_lse=True, kernel=kernel, **options)
        assert_right(found, expected, inputs, 0.01 if dtype == torch.float16 else 0.04)
    assert torch.equal(
        attention(*inputs, enable_gqa=True, **options),
        attention(*inputs, enable_gqa=True, return_lse=True, **options)[0],
    )


def test_a_mask_with_everything(device):
    """With is_causal and a window, all apply; the cap comes before an added mask; 16-bit masks are converted."""
    inputs = tensors(device, 9, 9)
    mask = torch.rand(9, 9, generator=torch.Generator().manual_seed(2)) < 0.7
    options = {"is_causal": True, "window_size": (4, -1), "softcap": 0.7}
    found = attention(*inputs, mask.to(device), enable_gqa=True, return_lse=True, **options)
    seen = mask & seen_of(9, 9, is_causal=True, window_size=(4, -1))
    assert_right(found, exact(*inputs, seen, softcap=0.7), inputs, 1e-5)
    added = torch.randn(9, 9, generator=torch.Generator().manual_seed(2)).to(device)
    out = attention(*inputs, added, enable_gqa=True, softcap=0.7)
    query, key, value = (x.double() for x in inputs)
    scores = 0.7 * torch.tanh(query @ key.repeat_interleave(2, 1).mT * HEAD_DIM**-0.5 / 0.7) + added
    torch.testing.assert_close(out.double(), scores.softmax(-1) @ value.repeat_interleave(2, 1), rtol=1e-5, atol=1e-5)
    half = [x.detach().bfloat16() for x in inputs]
    same = (attention(*half, mask, enable_gqa=True) for mask in (added.bfloat16(), added.bfloat16().float()))
    assert torch.equal(*same)


def test_dropout_is_that_of_its_seed(device):
    """A seed that is given, or drawn by PyTorch's generator, whose state determines which weights are dropped."""
    inputs, seed = tensors(device, 9, 9), torch.tensor([7], device=device)
    torch.manual_seed(11)
    drawn = attention_kernels.new_seed(torch.device(device))
    for given, used in ((seed, seed), (None, drawn)):
        torch.manual_seed(11)
        kept = dropout_mask(used, 0.4, 2, HEADS, 9, 9) / (1 - quantized_dropout(0.4))
        found = attention(*inputs, dropout_p=0.4, enable_gqa=True, seed=given, return_lse=True)
        assert_right(found, exact(*inputs, seen_of(9, 9), kept=kept), inputs, 1e-5)


@pytest.mark.parametrize("head_dim", [8, 136])
def test_five_dimensions_that_broadcast(device, head_dim):
    """With the gradients, including the sinks'; heads that share keys, values of another head_dim."""
    generator = torch.Generator().manual_seed(3)
    shapes = (2, 1, 4, 5, head_dim), (2, 3, 2, 7, head_dim), (2, 3, 2, 7, head_dim + 3)
    inputs = [torch.randn(shape, generator=generator).to(device).requires_grad_() for shape in shapes]
    sinks = torch.randn(4, generator=generator).to(device).requires_grad_()
    for options in ({"softcap": 0.7}, {"sinks": sinks}, {"softcap": 0.7, "sinks": sinks}):
        found = attention(*inputs, is_causal=True, enable_gqa=True, return_lse=True, **options)
        expected = exact(*inputs, seen_of(5, 7, is_causal=True), **options)
        assert_right(found, expected, [*inputs, *[sinks] * ("sinks" in options)], 1e-5)


def test_other_shapes_have_a_logsumexp_as_well(device):
    query, key = (torch.randn(n, HEAD_DIM, device=device) for n in (5, 7))
    out, lse = attention(query, key, key, return_lse=True)
    assert out.shape == (5, HEAD_DIM) and lse.shape == (5,)
    out, lse = attention(query, key[:0], key[:0], return_lse=True)
    assert not out.any() and lse.shape == (5,) and bool((lse == -math.inf).all())
    many = torch.randn(2, 3, 2, 5, HEAD_DIM, device=device)
    assert attention(many, many, many[..., :3], return_lse=True)[1].shape == (2, 3, 2, 5)


def test_which_kernel_is_chosen(device):
    """By default the first kernel that supports the call; the requested one, or an error that says why not."""
    inputs = [x.detach() for x in tensors(device, 9, 9)]
    half = [x.half() for x in inputs]
    gradients = [x.half().requires_grad_() for x in inputs]
    window = {"window_size": (3, 0), "is_causal": True}
    wide = [x.detach() for x in tensors(device, 5, 5, head_dim=160)]
    for given, options, kernel in (
        (inputs, {}, "flash"),
        (half, window, "sparse"),
        (half, {"window_size": (3, 3)}, "sparse"),
        (half, {"window_size": (3, 2)}, "flash"),
        (half, {**window, "softcap": 1.0}, "flash"),
        (half, {"key_stride": 2}, "sparse"),
        (gradients, {"key_stride": 2}, "flash"),
        (gradients, window, "flash"),
        (inputs, window, "flash"),
        (wide, {}, "flash"),
    ):
        found = explain(*given, enable_gqa=True, **options)
        if kernel == "sparse":
            assert found.kernel == "sparse"
        elif given[0].dtype == torch.half:
            assert found.kernel in ("wgmma", "mma")
        else:
            assert found.kernel == "plain" if options or given is wide else "fp16" in found.kernel
        out = attention(*given, enable_gqa=True, **options)
        assert torch.equal(out, attention(*given, enable_gqa=True, kernel=kernel, **options))
    with pytest.raises(ValueError, match=r"no kernel takes this call: 'sparse' \(a gradient may be asked for\)"):
        attention(*gradients, enable_gqa=True, kernel="sparse", **window)
    assert explain(*inputs, enable_gqa=True, kernel="flash_fp32").kernel == "fp32"
    assert explain(*inputs, enable_gqa=True, softcap=2.0).reasons == ()
    assert any("without softcap: " in words for words in explain(*inputs, enable_gqa=True, softcap=2.0).faster)
    assert explain(*half, enable_gqa=True, **window).reasons == ()
    assert explain(*gradients, enable_gqa=True, **window).reasons == (
        "sparse does not take it: a gradient may be asked for",
    )


def test_a_call_like_an_earlier_one_is_looked_at_again(device):
    """The second of two calls that differ in one argument gets its own kernel and errors, as the first did."""
    query, key, value = (torch.randn(2, 3, 9, HEAD_DIM, device=device) for _ in range(3))
    out = attention(query, key, value, is_causal=True)
    assert torch.equal(attention(query, key, value, is_causal=True), out)
    assert not torch.equal(attention(query, key, value), out)
    assert not torch.equal(attention(2 * query, key, value, is_causal=True), out)
    with_lse, lse = attention(query, key, value, is_causal=True, return_lse=True)
    assert torch.equal(with_lse, out) and lse.shape == (2, 3, 9)
    assert torch.equal(attention(query, key[:, :1], value[:, :1], is_causal=True, enable_gqa=True)[:, 0], out[:, 0])
    turned = [x.mT.contiguous().mT for x in (query, key, value)]  # rows that are not contiguous
    assert torch.equal(attention(*turned, is_causal=True), out)
    narrow = [x[..., :4] for x in (query, key, value)]
    assert torch.equal(attention(*narrow, is_causal=True), attention(*narrow, is_causal=True, scale=0.5))
    trained = value.clone().requires_grad_()
    with torch.no_grad():
        assert not attention(query, key, trained, is_causal=True).requires_grad
    assert torch.autograd.grad(attention(query, key, trained, is_causal=True).sum(), trained)[0].any()
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        assert attention(query, key, value, is_causal=True).dtype == torch.bfloat16
    alone = torch.func.vmap(lambda q: attention(q, key, value, is_causal=True))(query[None])
    torch.testing.assert_close(alone[0], out)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward-mode"):
        dual = torch.autograd.forward_ad.make_dual(query, query)
        attention(dual, key, value, is_causal=True)
    with pytest.raises(ValueError, match="is_causal is 1"):
        attention(query, key, value, is_causal=1)
    with pytest.raises(ValueError, match=r"key is on the device 'meta'"):
        attention(query, key.to("meta"), value, is_causal=True)


def test_explain_leaves_the_generator_alone(device):
    inputs, drawn = tensors(device, 9, 9), []
    for asked in (False, True):
        torch.manual_seed(0)
        if asked:
            explain(*inputs, enable_gqa=True, dropout_p=0.1)
        drawn.append(torch.rand(3, device=device))
    assert torch.equal(*drawn)


def test_options_are_arguments_of_one_dataclass():
    """Every option of attention has its field, and vice versa."""
    arguments = list(inspect.signature(attention).parameters)
    assert sorted(arguments[3:]) == sorted(attention_kernels.Options.__dataclass_fields__)


REFUSED = [
    ({"kernel": "fast"}, r"kernel is 'fast'; it must be None \(the fastest that can\) or 'sparse', 'flash'"),
    ({"kernel": "flash_fp32", "softcap": 2.0}, r"no kernel takes this call: 'flash_fp32' \(softcap is 2.0\)"),
    ({"kernel": "sparse"}, r"'sparse' \(it has keys at a stride, and windows that are"),
    ({"kernel": "sparse", "window_size": (3, 3)}, r"'sparse' \(query has dtype torch.float32\)"),
    ({"key_stride": 20}, r"key_stride is 20; it must be 1 \.\. S_k = 9"),
    ({"key_stride": 0}, "key_stride is 0 and key_offset 0; key_stride must be at least 1"),
    ({"key_stride": 2, "key_offset": 2}, r"key_stride is 2 and key_offset 2; .*key_offset 0 \.\. key_stride - 1"),
    ({"key_stride": 2, "softcap": 2.0}, r"no kernel takes this call: .*'flash' \(key_stride is 2 with softcap\)"),
    ({"window_size": (2, 1.5)}, r"window_size is \(2, 1.5\); it must be \(left, right\)"),
    ({"dropout_p": 1.0}, "dropout_p is 1.0; it must be 0 or more and less than 1"),
    ({"softcap": math.nan}, r"softcap is nan; it must be 0 \(none\) or positive and finite"),
    ({"sinks": torch.zeros(3)}, r"sinks has shape \[3\]; it must be \[heads\] = \[4\]"),
    ({"enable_gqa": False}, r"batch dimensions .* do not broadcast; .* enable_gqa=True"),
    ({"value": torch.zeros(2, 2, 9, 257)}, r"'flash' \(head_dim is 257, over 256\)"),
    ({"is_causal": 1}, "is_causal is 1; it must be True or False"),
]


@pytest.mark.parametrize(("changed", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_refused(device, changed, words):
    names = ("query", "key", "value")
    given = dict(zip(names, (x.detach() for x in tensors(device, 9, 9)), strict=True)) | {"enable_gqa": True}
    changed = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in changed.items()}
    with pytest.raises(ValueError, match=words):
        attention(**given | changed)


# ---- the other three

LENGTHS = [(4, 7), (0, 0), (9, 9), (6, 2)]  # rows and keys of every sequence


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"is_causal": True, "lower_right": True}], ids=str)
def test_packed_sequences_are_those_of_attention(device, options):
    """Includes alignment, with a window and sinks; values of another head_dim; the logsumexp is [heads, total_q]."""
    totals = [sum(x) for x in zip(*LENGTHS, strict=True)]
    query, key, value = (x[0].transpose(0, 1).detach() for x in tensors(device, *totals, batch=1))
    leaves = [x.requires_grad_() for x in (query, key, value[..., :5].detach())]
    begins = torch.tensor([(0, 0), *LENGTHS]).cumsum(0).to(device)
    options = options | {
        "window_size": (5, -1),
        "sinks": torch.linspace(-1, 2, HEADS).to(device),
        "deterministic": True,
    }
    out, lse = attention_varlen(*leaves, *begins.unbind(1), return_lse=True, **options)
    assert out.shape == (totals[0], HEADS, 5) and lse.shape == (HEADS, totals[0])
    parts = []
    for (q, k), (rows, keys) in zip(begins.tolist(), LENGTHS, strict=False):
        whole = leaves[0][q : q + rows], leaves[1][k : k + keys], leaves[2][k : k + keys]
        one = attention(*(x.transpose(0, 1) for x in whole), enable_gqa=True, return_lse=True, **options)
        parts.append(one)
    expected = torch.cat([x.transpose(0, 1) for x, _ in parts])
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse, torch.cat([x for _, x in parts], 1), rtol=1e-5, atol=1e-5)
    grads = (torch.autograd.grad(x.square().sum(), leaves) for x in (out, expected))
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"cu_seqlens_q has dtype torch.float32; it must be an integer one"):
        attention_varlen(*leaves, begins[:, 0].float())
    with pytest.raises(ValueError, match=r"query has shape .*; it must be \[total, heads, head_dim\]"):
        attention_varlen(leaves[0][None], *leaves[1:], begins[:, 0])
    with pytest.raises(ValueError, match=r"query has shape .* and key .*; their last sizes, head_dim, must be equal"):
        attention_varlen(leaves[0][..., :6], *leaves[1:], *begins.unbind(1))


CACHED, NEW, CAPACITY, PAGE = (21, 3), 5, 64, 16
TABLE = [[4, 0, 6, 7], [2, 3, 1, 5]]


def rotated(x: Tensor, angles: Tensor, first: int) -> Tensor:
    """x [heads, tokens, head_dim] rotated for positions first, first + 1, ..., with the halves not interleaved."""
    turn = torch.polar(angles.new_ones((), dtype=torch.float64), angles[first : first + x.size(1)].double())
    turned = torch.complex(*x.double().chunk(2, -1)) * turn
    return torch.cat((turned.real, turned.imag), -1)


CACHE_CALLS = {
    "one token": (1, {}),
    "one token, logsumexp": (1, {"return_lse": True}),
    "several tokens": (NEW, {}),
    "softcap, sinks, window": (NEW, {"softcap": 0.8, "sinks": True, "window_size": (6, 0), "return_lse": True}),
    "one token in a window": (1, {"window_size": (6, -1), "scale": 0.2}),
}


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("in_pages", [False, True])
@pytest.mark.parametrize("name", CACHE_CALLS)
def test_new_tokens_over_a_cache(device, name, in_pages, rotary):
    """The caches are filled, and each query sees everything up to itself, within its window. NaN follows."""
    new, options = CACHE_CALLS[name]
    options = dict(options)
    if options.get("sinks"):
        options["sinks"] = torch.linspace(-1, 2, HEADS).to(device)
    generator = torch.Generator().manual_seed(0)
    old, query, fresh = (
        torch.randn(shape, generator=generator).to(device)
        for shape in (
            (2, 2, KV_HEADS, max(CACHED), HEAD_DIM),
            (2, HEADS, new, HEAD_DIM),
            (2, 2, KV_HEADS, new, HEAD_DIM),
        )
    )
    if in_pages:
        caches, table = torch.full((2, 8, KV_HEADS, PAGE, HEAD_DIM), math.nan), torch.tensor(TABLE, dtype=torch.int32)
        table = table.to(device)
    else:
        caches, table = torch.full((2, 2, KV_HEADS, CAPACITY, HEAD_DIM), math.nan), None
    caches = caches.to(device)
    lengths = torch.tensor(CACHED, dtype=torch.int32, device=device)
    update_cache(*caches, *old, torch.zeros_like(lengths), table)
    angles = torch.rand(CAPACITY, HEAD_DIM // 2, generator=generator).to(device) * 6
    tables = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin()} if rotary else {}
    given = {"cache_seqlens": lengths, "block_table": table, **tables, **options}
    found = attention_with_kvcache(query, *caches, *fresh, **given)
    found, lse = found if options.pop("return_lse", False) else (found, None)
    window = options.pop("window_size", (-1, -1))
    for b, cached in enumerate(CACHED):
        keys, values = (torch.cat([x[b, :, :cached], y[b]], 1) for x, y in zip(old, fresh, strict=True))
        one = query[b]
        if rotary:
            one = rotated(one, angles, cached)
            keys = torch.cat([keys[:, :cached].double(), rotated(keys[:, cached:], angles, cached)], 1)
        seen = seen_of(new, cached + new, is_causal=True, window_size=(window[0], -1), lower_right=True)
        right, right_lse = exact(one, keys, values, seen, **options)
        torch.testing.assert_close(found[b].double(), right, rtol=1e-5, atol=1e-5)
        if lse is not None:
            torch.testing.assert_close(lse[b].double(), right_lse, rtol=1e-5, atol=1e-5)
    if not rotary:  # they are in the cache now: the same without writing them
        given = {"cache_seqlens": lengths + new, "block_table": table, "window_size": window}
        again = attention_with_kvcache(query, *caches, **given, **options, return_lse=lse is not None)
        assert torch.equal(again if lse is None else again[0], found)


def test_bad_arguments_of_the_cache_are_named(device):
    query = torch.zeros(2, HEADS, 1, HEAD_DIM, device=device)
    key, value = torch.zeros(2, 2, KV_HEADS, 42, HEAD_DIM, device=device)
    caches = torch.zeros(2, 2, KV_HEADS, 32, HEAD_DIM, device=device)
    lengths = torch.tensor(CACHED, dtype=torch.int32, device=device)
    table = torch.zeros(2, 2, dtype=torch.int32, device=device)
    for arguments, words in (
        (({"cache_seqlens": lengths.long()}), "lengths has dtype Long; it must be Int"),
        ({"cache_seqlens": lengths, "key": key, "value": value}, "key has new_tokens = 42; at most 32 fit into the"),
        (
            {"cache_seqlens": lengths, "key": key},
            "key and value, and rotary_cos and rotary_sin, must be given together",
        ),
        ({"cache_seqlens": lengths, "rotary_cos": key, "rotary_sin": key}, "rotary_cos is given and key is None"),
    ):
        with pytest.raises(ValueError, match=words):
            attention_with_kvcache(query, *caches, **arguments)
    with pytest.raises(ValueError, match="dimension 2, the tokens of a page, must be 16, 32, 64, 128 or 256"):
        pages = caches[:, :, :, :24].contiguous()
        attention_with_kvcache(query, *pages, cache_seqlens=lengths, block_table=table)


def test_blocks_of_a_mask(device):
    """As a mask and as its lists; gradients: tests/common/kernels/flash."""
    blocks = torch.tensor([[[1, 0], [1, 1]], [[0, 0], [0, 1]], [[1, 1], [1, 1]], [[0, 1], [1, 0]]]).bool()
    lists = counts, columns = compress_block_mask(blocks.to(device))
    assert counts.tolist() == blocks.sum(-1).tolist() and columns[3].tolist() == [[1, -1], [0, -1]]
    for dtype, kernels in ((torch.float32, (None,)), (torch.float16, (None, "flash"))):
        inputs = [x.detach() for x in tensors(device, 64, 64, dtype)]
        for is_causal in (False, True):
            seen = blocks.repeat_interleave(32, 1).repeat_interleave(32, 2) & seen_of(64, 64, is_causal)
            expected = exact(*inputs, seen)
            for kernel in kernels:
                options = {"is_causal": is_causal, "return_lse": True, "kernel": kernel}
                found = block_sparse_attention(*inputs, blocks.to(device), **options)
                assert_right(found, expected, inputs, 1e-5 if dtype == torch.float32 else 0.01)
                assert torch.equal(found[0], block_sparse_attention(*inputs, lists, is_causal=is_causal, kernel=kernel))
    with pytest.raises(ValueError, match="block_mask has dtype Float; it must be Bool"):
        compress_block_mask(torch.ones(1, 2, 2, device=device))
    with pytest.raises(ValueError, match="block is 16; it must be 32, 64, 96 or 128"):
        block_sparse_attention(*inputs, torch.ones(HEADS, 4, 4, dtype=torch.bool, device=device))


def test_torch_fx_and_torch_jit(device):
    """A separate node for tracing; torch.jit.script, which lacks keyword arguments, gets a clear error."""
    inputs = tuple(x.detach() for x in tensors(device, 9, 9))

    def layer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(2 * query, key, value, enable_gqa=True, is_causal=True) + 1

    traced = torch.fx.symbolic_trace(layer)
    assert attention in [node.target for node in traced.graph.nodes]
    assert torch.equal(traced(*inputs), layer(*inputs))
    assert torch.equal(torch.jit.trace(layer, inputs)(*inputs), layer(*inputs))
    with pytest.raises(NotImplementedError, match=r"torch.jit.script does not take attention: use torch.compile"):
        torch.jit.script(attention)

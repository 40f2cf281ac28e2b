"""Task 5's Python side: the reference, the module, the model, bad arguments and the command line."""

from __future__ import annotations

import math
import os
import subprocess

import pytest
import torch
import torch.nn.functional as F
from forked_python import run_python
from torch import Tensor

from common.cli.test import test_main
from common.reference.bounds import running_sum_floor
from common.testing.judging import oracle
from task5.cases import cases
from task5.given.layer import CustomStridedAttention
from task5.given.model import StridedTransformer
from task5.given.reference import naive_strided_attention, strided_mask, strided_positions
from task5.test import TEST

ROUNDING = 1e-5  # float32 scores of size 1, as passed on by the softmax; see common/testing/cases/attention.py


def dense(query: Tensor, key: Tensor, value: Tensor, stride: int, offset: int, causal: bool) -> Tensor:
    """Attention over all keys with a mask, in float64 in PyTorch; the keys are chosen one by one."""
    seq_q, seq_k = query.size(-2), key.size(-2)
    see = [
        [j >= offset and (j - offset) % stride == 0 and (j <= i or not causal) for j in range(seq_k)]
        for i in range(seq_q)
    ]
    mask = torch.tensor(see, device=query.device)
    out = F.scaled_dot_product_attention(query.double(), key.double(), value.double(), attn_mask=mask)
    return out.masked_fill(~mask.any(-1, keepdim=True), 0.0)  # PyTorch gives NaN to a query that sees no key


def heads(seq_q: int, seq_k: int, head_dim: int, device=None) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seq_q + 1000 * seq_k)
    shapes = ((2, 3, seq, head_dim) for seq in (seq_q, seq_k, seq_k))
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("seq_q", "seq_k", "stride", "offset"),
    [(20, 20, 1, 0), (20, 20, 4, 0), (20, 20, 4, 3), (7, 33, 5, 2), (33, 7, 7, 6), (50, 50, 20, 19), (1, 1, 1, 0)],
)
def test_reference_and_kernel_are_dense_attention_under_the_mask(solution, seq_q, seq_k, stride, offset, causal):
    ops = solution("task5")
    inputs = heads(seq_q, seq_k, 16, ops.device)
    right = dense(*inputs, stride, offset, causal)
    reference = naive_strided_attention(*(x.double() for x in inputs), stride, offset, causal)
    torch.testing.assert_close(reference, right, rtol=0, atol=1e-13)
    out = ops.strided_attention(*inputs, stride, offset, causal).double()
    assert (out - right).abs().max() <= ROUNDING + running_sum_floor(seq_k, 4)


def test_positions_and_mask():
    assert strided_positions(11, 4, 1).tolist() == [1, 5, 9]
    assert strided_positions(10, 4, 2).tolist() == [2, 6] and strided_positions(3, 3, 0).tolist() == [0]
    seen = strided_mask(6, 11, 4, 1, causal=True).tolist()
    assert seen == [[False] * 3] + [[True, False, False]] * 4 + [[True, True, False]]
    assert strided_mask(6, 11, 4, 1).all()


def test_the_default_arguments_are_those_of_the_reference(solution):
    ops = solution("task5")
    inputs = heads(9, 13, 8, ops.device)
    right = naive_strided_attention(*(x.double() for x in inputs), stride=3)
    assert (ops.strided_attention(*inputs, 3).double() - right).abs().max() <= ROUNDING + running_sum_floor(13, 4)
    scaled = naive_strided_attention(*(x.double() for x in inputs), stride=3, scale=0.1)
    out = ops.strided_attention(*inputs, 3, scale=0.1).double()
    assert (out - scaled).abs().max() <= ROUNDING + running_sum_floor(13, 4)


@pytest.mark.parametrize(("stride", "offset", "causal"), [(1, 0, True), (4, 0, True), (4, 3, True), (3, 1, False)])
def test_the_module_is_dense_attention_between_its_projections(solution, stride, offset, causal):
    ops = solution("task5")
    torch.manual_seed(0)
    module = CustomStridedAttention(32, 4, stride, causal, ops, offset)
    x = torch.randn(2, 21, 32, device=ops.device)
    out = module(x)
    assert out.shape == x.shape

    weights = {name: p.detach().double() for name, p in module.named_parameters()}
    projected = F.linear(x.double(), weights["qkv_projection.weight"], weights["qkv_projection.bias"])
    query, key, value = (part.view(2, 21, 4, 8).transpose(1, 2) for part in projected.chunk(3, -1))
    merged = dense(query, key, value, stride, offset, causal).transpose(1, 2).reshape(2, 21, 32)
    right = F.linear(merged, weights["out_projection.weight"], weights["out_projection.bias"])
    assert (out.double() - right).abs().max() <= ROUNDING


def dense_model(model: StridedTransformer, tokens: Tensor) -> Tensor:
    """The model in float64, with PyTorch's attention."""
    weights = {name: p.detach().double() for name, p in model.named_parameters()}

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])

    x = weights["token_embedding.weight"][tokens] + weights["position_embedding.weight"][: tokens.size(1)]
    for number, block in enumerate(model.blocks):
        name, attention = f"blocks.{number}", block.attention
        split = linear(norm(x, f"{name}.attention_norm"), f"{name}.attention.qkv_projection").chunk(3, -1)
        query, key, value = (part.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for part in split)
        if attention.stride == 1:
            out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            out = dense(query, key, value, attention.stride, attention.offset, causal=True)
        x = x + linear(out.transpose(1, 2).flatten(-2), f"{name}.attention.out_projection")
        x = x + linear(F.gelu(linear(norm(x, f"{name}.mlp_norm"), f"{name}.mlp.0")), f"{name}.mlp.2")
    return linear(norm(x, "norm"), "head")


@pytest.mark.parametrize("strides", [(1, 1), (1, 4), (5,)])
def test_the_model_is_the_dense_model_under_the_masks(solution, strides):
    ops = solution("task5")
    torch.manual_seed(1)
    model = StridedTransformer(ops, vocab_size=11, max_seq_len=40, hidden_dim=24, num_heads=3, strides=strides)
    tokens = torch.randint(11, (2, 33), device=ops.device)
    logits = model(tokens)
    assert logits.shape == (2, 33, 11)
    # a block rounds twice, in its attention and in its MLP
    assert (logits.double() - dense_model(model, tokens)).abs().max() <= 2 * ROUNDING * len(strides)


def test_the_model_sees_no_future(solution):
    ops = solution("task5")
    torch.manual_seed(2)
    model = StridedTransformer(ops, vocab_size=11, max_seq_len=40, hidden_dim=24, num_heads=3, strides=(1, 3))
    tokens = torch.randint(11, (1, 30), device=ops.device)
    changed = tokens.clone()
    changed[:, 20:] = (changed[:, 20:] + 1) % 11
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :20], after[:, :20]) and not torch.equal(before[:, 20], after[:, 20])


BAD = [
    ({"stride": 0}, "stride is 0; it must be 1 .. S_k = 6"),
    ({"stride": -2}, "stride is -2; it must be 1 .. S_k = 6"),
    ({"stride": 7}, "stride is 7; it must be 1 .. S_k = 6"),
    ({"stride": 2**62}, "stride is 4611686018427387904; it must be 1 .. S_k = 6"),
    ({"offset": 2}, "offset is 2; it must be 0 .. stride - 1 = 1"),
    ({"offset": -1}, "offset is -1; it must be 0 .. stride - 1 = 1"),
    ({"stride": 1, "offset": 1}, "offset is 1; it must be 0 .. stride - 1 = 0"),
]


@pytest.mark.parametrize(("bad", "words"), BAD)
def test_the_reference_refuses_what_the_operator_does(bad, words):
    query, key, value = (torch.randn(2, 3, tokens, 5) for tokens in (4, 6, 6))
    with pytest.raises(ValueError, match=words):
        naive_strided_attention(query, key, value, **{"stride": 2, **bad})


def test_bad_arguments_of_module_and_model(solution):
    ops = solution("task5")
    with pytest.raises(ValueError, match="stride is 0; it must be at least 1"):
        CustomStridedAttention(8, 2, 0, True, ops)
    with pytest.raises(ValueError, match=r"offset is 3; it must be 0 \.\. stride - 1 = 2"):
        CustomStridedAttention(8, 2, 3, True, ops, offset=3)
    with pytest.raises(ValueError, match="hidden_dim is 9; it must be a positive multiple of num_heads = 2"):
        CustomStridedAttention(9, 2, 3, True, ops)
    with pytest.raises(ValueError, match=r"stride is 3; it must be 1 \.\. S_k = 2"):
        CustomStridedAttention(8, 2, 3, True, ops)(torch.zeros(1, 2, 8, device=ops.device))
    with pytest.raises(ValueError, match=r"x has shape \[2, 8\]"):
        CustomStridedAttention(8, 2, 1, True, ops)(torch.zeros(2, 8, device=ops.device))
    sizes = {"vocab_size": 5, "max_seq_len": 4, "hidden_dim": 8, "num_heads": 2, "strides": (1,)}
    with pytest.raises(ValueError, match="strides is empty"):
        StridedTransformer(ops, **{**sizes, "strides": ()})
    with pytest.raises(ValueError, match="vocab_size is 0; it must be at least 1"):
        StridedTransformer(ops, **{**sizes, "vocab_size": 0})
    with pytest.raises(ValueError, match=r"tokens has shape \[1, 5\]; .* max_seq_len = 4"):
        StridedTransformer(ops, **sizes)(torch.zeros(1, 5, dtype=torch.int64, device=ops.device))


def test_the_cases_say_what_they_do():
    """Every case's oracle is finite, and the parts are worth the points in the handout."""
    made = cases()
    for part in ("full", "causal"):
        assert math.isclose(sum(case.points for case in made if case.part == part), 0.75)
    case = next(case for case in made if case.name == "infinity between strided keys")
    inputs = case.inputs(torch.Generator().manual_seed(0))
    assert inputs["key"].isinf().any() and oracle(case, inputs)[0].isfinite().all()


def run(root, *options: str) -> subprocess.CompletedProcess:
    return run_python(["-m", "task5.test", "--backend", "simulator", *options], root, os.environ, 600)


NO_GPU = "benchmark: nothing was timed. Times are measured on a GPU"


def test_the_unfilled_task_names_its_gaps(root):
    done = run(root)
    said = " ".join(done.stdout.split())
    assert done.returncode == 1 and "Points: 0 of 3" in said and NO_GPU in said
    assert "not implemented yet: task5/strided_attention.cu:" in said and "(and 5 more gaps" in said


@pytest.mark.slow
def test_the_modes(root):
    benchmarked = run(root, "--mode=benchmark", "--solution")
    assert benchmarked.returncode == 2 and NO_GPU in benchmarked.stdout and "Points" not in benchmarked.stdout
    correct = run(root, "--mode", "correctness", "--solution")
    assert correct.returncode == 0 and "Points: 3 of 3" in correct.stdout and "timed" not in correct.stdout


def test_options_of_the_command(capsys):
    def said(*options: str) -> tuple[int, str]:
        try:
            status = test_main(TEST, ["--backend", "simulator", *options])
        except SystemExit as ended:
            status = ended.code
        return status, "".join(capsys.readouterr())

    status, listed = said("--list", "--causal")
    assert status == 0 and "60 + 64n" in listed and "timed" not in listed
    status, helped = said("--help")
    assert status == 0 and "--mode {correctness,benchmark}" in helped and "--check" in helped
    assert said("--mode=speed")[0] == 2
    assert "--full is not part of --mode benchmark" in said("--mode=benchmark", "--full")[1]

"""Task 5 trains: gradients of its module and model, the toy task, python -m task5.train."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from task5.given.layer import CustomStridedAttention
from task5.given.model import StridedTransformer
from task5.given.reference import naive_strided_attention
from task5.tools import train as training
from task5.tools.toy_task import DOT, SYMBOLS, Recall

TINY = training.Setting(Recall(pairs=2, record=4), hidden_dim=32, num_heads=1, batch=8, steps=30, learning_rate=1e-2)


# ---- gradients


@pytest.mark.parametrize(("stride", "offset", "causal"), [(1, 0, True), (4, 0, True), (4, 3, True), (3, 1, False)])
def test_the_gradients_of_the_module_are_those_of_the_reference(solution, stride, offset, causal):
    """Gradients of the input and every weight, compared with autograd through the reference in float64."""
    ops = solution("task5")
    torch.manual_seed(0)
    module = CustomStridedAttention(32, 4, stride, causal, ops, offset)
    x = torch.randn(2, 21, 32, device=ops.device, requires_grad=True)
    grad_out = torch.randn(2, 21, 32, device=ops.device)
    out = module(x)
    weights = dict(module.named_parameters())
    got = torch.autograd.grad(out, [x, *weights.values()], grad_out)

    x64 = x.detach().double().requires_grad_()
    weights64 = {name: p.detach().double().requires_grad_() for name, p in weights.items()}
    projected = F.linear(x64, weights64["qkv_projection.weight"], weights64["qkv_projection.bias"])
    heads = (part.view(2, 21, 4, 8).transpose(1, 2) for part in projected.chunk(3, -1))
    merged = naive_strided_attention(*heads, stride, offset, causal).transpose(1, 2).reshape(2, 21, 32)
    out64 = F.linear(merged, weights64["out_projection.weight"], weights64["out_projection.bias"])
    wanted = torch.autograd.grad(out64, [x64, *weights64.values()], grad_out.double())
    for name, a, b in zip(["x", *weights], got, wanted, strict=True):
        assert (a - b).abs().max() <= 1e-5 * max(1, b.abs().max()), name


def test_output_is_the_kernels_with_and_without_a_gradient(solution):
    ops = solution("task5")
    torch.manual_seed(0)
    module = CustomStridedAttention(16, 2, 3, True, ops)
    x = torch.randn(2, 10, 16, device=ops.device)
    with torch.no_grad():
        inference = module(x)
    assert not inference.requires_grad and torch.equal(module(x), inference)


def test_every_weight_of_the_model_gets_a_gradient(solution):
    ops = solution("task5")
    torch.manual_seed(0)
    model = StridedTransformer(ops, 11, 20, 16, 2, strides=(1, 4))
    model(torch.randint(11, (2, 20), device=ops.device)).square().mean().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None and weight.grad.isfinite().all() and weight.grad.any(), name


# ---- the task


def test_a_sequence_is_records_then_questions():
    task = Recall(pairs=5, record=4)
    tokens, answers = task.batch(50, torch.Generator().manual_seed(3))
    assert tokens.shape == (50, task.seq_len) and answers.shape == (50, 5) and tokens.dtype == torch.int64
    assert int(tokens.min()) >= 0 and int(tokens.max()) < task.vocab_size
    for row, answer in zip(tokens.tolist(), answers.tolist(), strict=True):
        records = [row[start : start + 4] for start in range(0, 20, 4)]
        value_of = {key: value for key, value, *_ in records}
        assert len(value_of) == 5 and all(dots == [DOT, DOT] for _, _, *dots in records)
        assert all(1 <= key <= SYMBOLS < value for key, value in value_of.items())
        asked = row[task.questions]
        assert sorted(asked) == sorted(value_of) and [value_of[key] for key in asked] == answer
        assert row[21::2] == answer[:-1]  # each question is followed by its answer, except the last
    assert len({tuple(row) for row in answers.tolist()}) > 40  # drawn independently for every sequence
    again, _ = task.batch(50, torch.Generator().manual_seed(3))
    assert torch.equal(tokens, again)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((0, 4), r"pairs is 0; it must be 1 \.\. 16"),
        ((17, 4), r"pairs is 17; it must be 1 \.\. 16"),
        ((4, 1), "record is 1; it must be at least 2"),
    ],
)
def test_bad_sizes_are_named(sizes, words):
    with pytest.raises(ValueError, match=words):
        Recall(*sizes)


# ---- training


@pytest.mark.slow
def test_a_few_steps_reduce_the_loss(solution):
    run = training.train((1, 4), TINY, solution("task5"), seed=1)
    assert len(run.losses) == 30 and all(math.isfinite(loss) for loss in run.losses)
    assert sum(run.losses[-5:]) / 5 < sum(run.losses[:5]) / 5 - 0.6
    assert 0 <= run.accuracy <= 1 and run.tokens_per_second > 0


def test_runs_of_one_seed_begin_alike_whatever_the_strides(solution):
    """The same weights and sequences: with stride 1 the first losses are equal, with another stride nearly so."""
    ops, setting = solution("task5"), replace(TINY, steps=1)
    dense, again, strided, other = (
        training.train(strides, setting, ops, seed).losses[0]
        for strides, seed in [((1, 1), 0), ((1, 1), 0), ((1, 4), 0), ((1, 1), 1)]
    )
    assert dense == again and dense != strided and dense != other
    assert abs(dense - strided) < 0.2


@pytest.mark.parametrize(("changed", "words"), [({"steps": 0}, "steps is 0"), ({"batch": 0}, "batch is 0")])
def test_bad_settings_are_named(solution, changed, words):
    with pytest.raises(ValueError, match=f"{words}; it must be at least 1"):
        training.train((1, 1), replace(TINY, **changed), solution("task5"))


# ---- the picture


def test_means_of_the_last_losses():
    assert training.smoothed([4.0, 2.0, 0.0, 6.0], 2) == [4.0, 3.0, 1.0, 3.0]
    assert training.smoothed([4.0, 2.0], 1) == [4.0, 2.0]


def test_the_picture_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "folder" / "loss.png"
    training.draw({"dense": [3.0, 2.0, 1.0], "strided": [3.0, 2.5, 2.0]}, "title", {"guessing": 2.8}, file)
    assert file.read_bytes().startswith(b"\x89PNG")


# ---- the command


def test_the_command(backend, solution, tmp_path, monkeypatch, capsys):
    """With few steps."""
    monkeypatch.setitem(training.SETTINGS, backend, TINY)
    file = tmp_path / "loss.png"
    options = ["--solution", "--backend", backend, "--steps", "2", "--stride", "3", "--picture", str(file)]
    assert training.main(options) == 0
    said = capsys.readouterr().out
    assert "2 records of 4 tokens" in said and "2 steps" in said and "tokens/s" in said
    assert "dense" in said and "1, 3" in said and "guessing: loss 2.773, accuracy 6.2%" in said
    assert "picture: " in said and file.stat().st_size > 5000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--steps", "0"], "--steps is 0; it must be at least 1"),
        (["--stride", "0"], "--stride is 0; it must be 1 .. 19, the length of the sequences"),
        (["--stride", "20"], "--stride is 20; it must be 1 .. 19, the length of the sequences"),
        (["--seed", "-1"], "--seed is -1; it must be 0 .. 2147483647"),
        (["--picture", "loss.jpg"], "--picture is loss.jpg; it must end in .png"),
    ],
)
def test_a_bad_option_is_named(options, words, capsys):
    assert training.main(["--backend", "simulator", *options]) == 1
    assert words in capsys.readouterr().out


def test_an_unfilled_gap_is_named(capsys):
    assert training.main(["--backend", "simulator", "--steps", "1"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "task5 strided_attention is not implemented yet: task5/" in said

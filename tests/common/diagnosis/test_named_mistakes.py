"""Known mistakes are named: made in PyTorch in float32, independently of common/diagnosis/mistakes.

Only those not planted in the real kernels: tests/task*/test_planted*.py.
"""

import ast
import json
import math

import pytest
import torch
from fake_operators import fake_operators

from common.console.paths import ROOT
from common.reference import oracle as reference
from common.testing.case import FAIL, PASS
from common.testing.judging import judge
from task2.cases import cases

MADE_BY = ("known", "known.says", "says")  # functions that take the key of a sentence
CASES = {case.name: case for case in cases()}
EVERYWHERE = [case for case in CASES.values() if not case.gpu_only]


def flash_without_rescale(query, key, value, causal, scale=None):
    """FlashAttention over tiles of 16 keys that doesn't rescale O and l for a new maximum."""
    s = reference.scores(query, key, causal, scale)
    m, total, out = torch.full_like(s[..., :1], -math.inf), 0.0, 0.0
    for start in range(0, s.size(-1), 16):
        m = torch.maximum(m, s[..., start : start + 16].amax(-1, keepdim=True))
        p = torch.exp(s[..., start : start + 16] - m)
        total, out = total + p.sum(-1, keepdim=True), out + p @ value[..., start : start + 16, :]
    return out / total


@pytest.mark.parametrize(
    ("operator", "case", "name", "wrong"),
    [
        ("softmax", "7 x 31", "e = exp2(x - shift_of(m))", lambda x: reference.softmax(x * math.log(2))),
        ("softmax", "113 x 203", "output transposed", lambda x: reference.softmax(x).T.contiguous().view_as(x)),
        ("gemm_nt", "A B^T, 63 x 65 x 64", "output transposed", lambda a, b: (b @ a.mT).view(1, 63, 65)),
        ("gemm_nn", "A B, 64 x 64 x 64", "B transposed", lambda a, b: a @ b.mT),
        ("attention", "65 tokens, head_dim 80", "no rescale in the online softmax", flash_without_rescale),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_mistake_is_rejected_and_named(operator: str, case: str, name: str, wrong, seed: int) -> None:
    verdict = judge(CASES[case], fake_operators(**{operator: wrong}), seed)
    assert verdict.status == FAIL
    assert not verdict.max_error <= verdict.bound
    assert verdict.mistakes == [name], verdict.diagnosis
    assert verdict.diagnosis


@pytest.mark.parametrize("case", EVERYWHERE, ids=lambda case: case.name)
def test_the_right_answer_passes_without_a_diagnosis(case) -> None:
    verdict = judge(case, fake_operators())
    assert verdict.status == PASS
    assert verdict.max_error <= verdict.bound
    assert verdict.diagnosis == verdict.mistakes == []


@pytest.mark.parametrize("case", EVERYWHERE, ids=lambda case: case.name)
def test_zeros_fail_everywhere(case) -> None:
    zeros = {
        "row_sum": lambda x: 0 * x.sum(1),
        "softmax": torch.zeros_like,
        "gemm_nt": lambda a, b: 0 * (a @ b.mT),
        "gemm_nn": lambda a, b: 0 * (a @ b),
        "attention": lambda q, k, v, causal, scale=None, mask=None: torch.zeros_like(q),
    }
    verdict = judge(case, fake_operators(**zeros))
    assert verdict.status == FAIL
    if case.name != "CustomAttention module":  # its output projection adds a bias
        assert "all zeros" in verdict.mistakes


@pytest.mark.parametrize("case", [case for case in EVERYWHERE if case.part == "attention"], ids=lambda case: case.name)
def test_the_mean_of_v_fails_wherever_there_is_more_than_one_key(case) -> None:
    def mean_of_v(query, key, value, causal, scale=None, mask=None):
        return value.mean(-2, keepdim=True).expand(*query.shape[:-1], -1).contiguous()

    expected = PASS if case.name in ("1 query, 1 key, head_dim 1", "33 queries, 1 key") else FAIL
    assert judge(case, fake_operators(attention=mean_of_v)).status == expected


def test_a_mistake_that_these_inputs_cannot_show_is_not_named() -> None:
    """With one key the scale has no effect: an output wrong for another reason must not be blamed on it."""
    shifted = fake_operators(
        attention=lambda q, k, v, c, s=None: reference.attention(q, k, v) + 0.1 * v[..., :1, :] ** 2
    )
    verdict = judge(CASES["33 queries, 1 key"], shifted)
    assert verdict.status == FAIL
    assert verdict.mistakes == []
    assert verdict.diagnosis[0].startswith("528 of 528 elements are wrong")


def test_a_mistake_that_is_none_of_the_known_is_located_and_not_named() -> None:
    verdict = judge(CASES["causal"], fake_operators(attention=lambda *args: reference.attention(*args) ** 3 + 1))
    assert verdict.status == FAIL
    assert verdict.mistakes == []
    assert any(sentence.lstrip().startswith("O expected") for sentence in verdict.diagnosis)
    assert any(sentence.lstrip().startswith("O got") for sentence in verdict.diagnosis)


def test_a_factor_is_told_as_such() -> None:
    verdict = judge(CASES["causal"], fake_operators(attention=lambda *args: reference.attention(*args).neg()))
    assert verdict.mistakes == []
    assert "Every wrong element is the right one times -1." in verdict.diagnosis


@pytest.mark.parametrize("file", [*ROOT.glob("common/**/words.json"), *ROOT.glob("task?/cases/words.json")])
def test_every_sentence_belongs_to_a_mistake_and_every_mistake_has_one(file) -> None:
    for module, says in json.loads(file.read_text()).items():
        nodes = [*ast.walk(ast.parse((file.parent / f"{module}.py").read_text()))]
        calls = [one for one in nodes if isinstance(one, ast.Call) and ast.unparse(one.func) in MADE_BY]
        keys = {one.args[0].value for one in calls if isinstance(one.args[0], ast.Constant)}
        assert calls and keys <= says.keys(), module
        assert {*says} <= {one.value for one in nodes if isinstance(one, ast.Constant)}, module

"""Single edits of Python: which are made of a text, and which of them make a real layer's failing cases pass."""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest
from rich.console import Console
from written_modules import written_module

from common.cli import tried_python
from common.cli.tried_python import add_edits
from common.compiling.operators import Operators
from common.compiling.variant import Variant
from common.console.paths import ROOT
from common.diagnosis.python_edits import edited, edits_in
from common.testing.calling import Around, Called, InProcess
from common.testing.case import NOT_RUN, PASS, Verdict
from common.testing.failures import print_failures
from common.testing.judging import judge
from common.testing.python_side import running_as

TEXT = '''\
"""A module."""
import torch
from torch import Tensor

LIMIT = 3


class Layer:
    def forward(self, x: Tensor, count: int, causal: bool, step: int) -> Tensor:
        """Größe of é."""
        scores = x @ self.key.transpose(-2, -1) / self.width**1 / 2
        scores.masked_fill(x > count, -torch.inf)
        if causal and count < 4:
            scores = scores * self.height
            scores = torch.cat((scores, x), dim=1)
        for start in range(0, count, step):
            tile = slice(start, step)
            total = scores[tile, :].sum(-1) + count
            return total
        return helper(x, scores) if causal else x
'''


@pytest.mark.parametrize(
    "says",
    [
        "with `count > x` in place of `x > count`",
        "with `self.key` in place of `self.key.transpose(-2, -1)`",
        "with `self.height` in place of `self.width`",
        "with `x @ self.key.transpose(-2, -1) / self.width ** (1 / 2)` in place of `.* / self.width**1 / 2`",
        "with `scores = scores.masked_fill(x > count, -torch.inf)` in place of `scores.masked_fill.*`",
        "with `x >= count` in place of `x > count`",
        "with `scores.masked_fill(x > count, torch.inf)` in place of `scores.masked_fill(x > count, -torch.inf)`",
        "with `causal or (count < 4)` in place of `causal and count < 4`",
        "with `causal and count < 4` always true",
        "with `scores = torch.cat((scores, x), dim=1)` after the block of line 13 and not in it",
        "with lines 14 and 15 exchanged",
        "without `scores = scores * self.height`",
        "with `torch.cat((scores, x), dim=-1)` in place of `torch.cat((scores, x), dim=1)`",
        "with `(x, scores)` in place of `(scores, x)`",
        "with `range(0, count)` in place of `range(0, count, step)`",
        "with `step + start` in place of `step`",
        "with `scores[:, tile]` in place of `scores[tile, :]`",
        "with `scores[tile, :].sum(-1, keepdim=True)` in place of `scores[tile, :].sum(-1)`",
        "with `scores[tile, :].mean(-1)` in place of `scores[tile, :].sum(-1)`",
        "with `return total` after the loop of line 16 and not in it",
        "with `helper(scores, x)` in place of `helper(x, scores)`",
        "with `x` in place of `helper(x, scores) if causal else x`",
    ],
)
def test_an_edit_of_each_kind_is_made(says: str) -> None:
    found = [one.says for one in edits_in(TEXT, "a.py", None)]
    assert any(re.fullmatch(re.escape(says).replace(r"\.\*", ".*"), one) for one in found), "\n".join(found)


def test_an_edit_changes_its_line_and_no_name_for_one_that_holds_something_else() -> None:
    edits = edits_in(TEXT, "a.py", None)
    for one in edits:
        now = edited(TEXT, one)
        before = TEXT.split("\n")[: one.line - 1]
        assert now != TEXT and now.split("\n")[: one.line - 1] == before, one.says
    assert {one.line for one in edits_in(TEXT, "a.py", {15})} == {15}
    assert not any(one.says.startswith(("with `x > x`", "with `count @", "with `causal > ")) for one in edits)
    assert edits_in("def f(:", "a.py", None) == []


def test_a_module_runs_as_another_text_until_it_is_done(tmp_path) -> None:
    text = (
        "class A:\n    def one(self):\n        return 1\n\n\ndef two():\n    return [A().one() + x for x in range(2)]\n"
    )
    module = written_module(tmp_path / "own.py", text)
    with running_as(module, text.replace("return 1", "return 5").replace("range(2)", "range(1)")):
        assert module.two() == [5]
    assert module.two() == [1, 2]
    with pytest.raises(SyntaxError), running_as(module, "def two(:"):
        pass
    with pytest.raises(KeyError), running_as(module, text.replace("return 1", "raise KeyError")):
        module.two()
    assert module.two() == [1, 2]


class Mistaken(InProcess):
    """Runs a task's Python with a mistake, in place of a worker."""

    seconds, call_seconds = 0.0, MappingProxyType({"simulator": 1.0})

    def __init__(self, task: str, text: str) -> None:
        super().__init__(Operators(task, "solution", "simulator", ()))
        self.text, self.ended = text, 0

    def call(self, case, inputs, around: Around = Around()) -> Called:  # noqa: B008
        return super().call(case, inputs, replace(around, edited=around.edited or self.text))

    def end_process(self) -> None:
        self.ended += 1


@pytest.mark.parametrize(
    ("task", "part", "right", "wrong", "says"),
    [
        ("task1", "layer", "query @ key.transpose", "key @ query.transpose",
         r"With `query @ key\.transpose\(-2, -1\)` in place of `.*`, all \d+ failing cases of layer pass\.\n"
         r"  -> task1/\S*attention\.py:\d+\n +.*\n  \d+ of \d+ elements are wrong .*\n[^`]*$"),
        pytest.param(
            "task3", "algorithm", "P.sum(-1, keepdim=True)", "P.sum(-1)",
            r"With `P\.sum\(-1, keepdim=True\)` in place of `P\.sum\(-1\)`, all \d+ failing cases of algorithm pass",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "task3", "algorithm", "slice(k_start, k_start + B_c)", "slice(k_start, B_c)",
            r"With `B_c \+ k_start` in place of `B_c`, all \d+ failing cases of algorithm pass\.",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "task3", "algorithm", "torch.exp(state.m - shift)", "torch.exp(m - shift)",  # a known mistake comes first
            r"multiply O and l by .*\n  -> task3/\S*:\d+\n.*\n  With `state\.m` in place of `m`, all \d+ failing cases",
            marks=pytest.mark.slow,
        ),
        pytest.param("task3", "algorithm", "", "", "", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_the_edit_that_makes_failing_cases_pass_is_told(task, part, right, wrong, says, monkeypatch) -> None:
    text = (ROOT / task / "solution" / "attention.py").read_text()
    if not says:  # two mistakes, which no single edit repairs
        right, wrong, text = "keys > queries", "keys < queries", text.replace("P.sum(-1", "2 * P.sum(-1")
    assert text.count(right) == 1
    verdicts, caller = _told(task, part, text.replace(right, wrong), monkeypatch)
    screen = Console(file=io.StringIO(), width=120)
    print_failures(screen, verdicts)
    assert caller.ended == 1
    printed = screen.file.getvalue()
    assert re.search(says, printed) if says else "in place of" not in printed, printed


@pytest.mark.slow
def test_cases_that_were_not_run_after_an_endless_one_are_run_with_the_edit(monkeypatch) -> None:
    text = (ROOT / "task3" / "solution" / "attention.py").read_text()
    wrong = text.replace("range(0, query.size(-2), B_r)", "range(0, key.size(-2), B_r)")
    verdicts, _ = _told("task3", "algorithm", wrong, monkeypatch, last=3)
    first = next(one for one in verdicts if one.status != PASS)
    assert first.status != NOT_RUN and verdicts[-1].status == NOT_RUN
    assert re.search(
        r"With `(query|out)` in place of `key`, all \d+ cases of algorithm pass", str(first.found.possible)
    )


def _told(task: str, part: str, text: str, monkeypatch, last: int = 0) -> tuple[Sequence[Verdict], Mistaken]:
    """The verdicts of a part with this text as its Python, of which the `last` were not run, and their caller."""
    monkeypatch.setattr(tried_python, "read_source", lambda file: text)
    lines, right = text.split("\n"), (ROOT / task / "solution" / "attention.py").read_text().split("\n")
    wrong = [number for number, both in enumerate(zip(lines, right, strict=True), 1) if both[0] != both[1]]
    near = {line for number in wrong for line in range(number - 2, number + 3)}
    monkeypatch.setattr(tried_python, "own_lines", lambda file: near)  # the others would take long
    monkeypatch.setattr(tried_python, "MOST_SECONDS", 1000.0)
    monkeypatch.setattr(tried_python, "MOST_IN_ALL", 1000.0)
    test, caller = importlib.import_module(f"{task}.test").TEST, Mistaken(task, text)
    cases = [one for one in test.cases(Variant.SOLUTION) if one.part == part and not one.gpu_only]
    cases = [one for one in cases if not one.name.startswith(("memory", "no tiles"))][:10]  # the others take long
    verdicts = [judge(one, caller) for one in cases]
    verdicts[len(verdicts) - last :] = [Verdict(one, NOT_RUN) for one in cases[len(cases) - last :]]
    add_edits(Console(file=io.StringIO()), verdicts, caller, task, "solution", 0, test.built_of)
    return verdicts, caller

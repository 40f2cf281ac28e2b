"""When a part fails, the stages it is built from are tested on their own."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from common.cli import test as command
from common.cli.test import TaskTest, _stages_of
from common.compiling.variant import Variant
from common.testing.case import FAIL, NOT_RUN, PASS, Case, Verdict


def case(name: str, part: str) -> Case:
    return Case(name, part, lambda generator: {}, None, None, 1e-6, ())


LOAD, STORE, WHOLE, OTHER = (case("a", part) for part in ("load", "store", "whole", "other"))
TEST = TaskTest(
    "task9",
    dict.fromkeys(("load", "store", "whole", "other"), ""),
    lambda variant: [LOAD, STORE, WHOLE, OTHER],
    stages=("load", "store"),
    built_of={"whole": ("load", "store", "other")},
)


@pytest.mark.parametrize(
    ("ran", "failed", "variant", "expected"),
    [
        ([WHOLE, OTHER], WHOLE, Variant.STUDENT, [LOAD, STORE]),
        ([WHOLE, OTHER], WHOLE, Variant.TUNED, []),
        ([WHOLE, OTHER], OTHER, Variant.STUDENT, []),
        ([WHOLE, OTHER], None, Variant.STUDENT, []),
        ([LOAD, WHOLE], WHOLE, Variant.STUDENT, [STORE]),
    ],
)
def test_the_stages_of_what_fails(ran, failed, variant, expected) -> None:
    verdicts = [Verdict(one, FAIL if one is failed else PASS) for one in ran]
    assert _stages_of(TEST, ran, verdicts, variant) == expected


@pytest.mark.parametrize(("status", "said"), [(PASS, True), (NOT_RUN, False), (FAIL, False)])
def test_stages_are_said_to_pass_only_where_they_do(monkeypatch, capsys, status, said) -> None:
    statuses = {"whole": FAIL, "load": PASS, "store": status, "other": PASS}
    monkeypatch.setattr(command, "judge", lambda case, *_, **__: Verdict(case, statuses[case.part], said=["."]))
    monkeypatch.setattr(command, "keep_verdicts", lambda *_: None)
    monkeypatch.setattr(command, "print_points", lambda *_: None)
    plain = SimpleNamespace(backend="cuda", about={"warnings": [], "rebuilt": False}, device=torch.device("cpu"))
    options = command.parser_of(TEST).parse_args([])
    test = replace(TEST, in_python=("whole", "load", "store", "other"))
    workers = SimpleNamespace(plain=plain, compiles=False)
    assert command._run(Console(), test, [WHOLE, OTHER], workers, options) == 1
    out = capsys.readouterr().out
    assert ("load, store: these pass when tested alone" in out) == said
    assert ("It is built on store" in out) == (status == FAIL)

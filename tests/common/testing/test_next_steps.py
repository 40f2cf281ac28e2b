"""A report's last lines name the flags that would help next, and no others."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from common.testing.case import ERROR, FAIL, PASS, Verdict
from common.testing.next_steps import print_next


def said(*statuses: str, inside=None, chosen=False, is_endless=False) -> str:
    console = Console(file=io.StringIO(), width=120)
    verdicts = [
        Verdict(SimpleNamespace(part="softmax", name=f"{i} x 31"), status, is_endless=is_endless)
        for i, status in enumerate(statuses)
    ]
    wrong = [one for one in verdicts if one.status in (FAIL, ERROR)]
    print_next(console, "task2.test", verdicts, wrong, inside or {}, chosen)
    return " ".join(console.file.getvalue().split())


@pytest.mark.parametrize(
    ("options", "named", "not_named"),
    [
        ({"inside": {}}, ["--check --case 'softmax: 1 x 31' looks inside", "--show"], ["--profile"]),
        ({"inside": {"softmax": []}}, ["--case 'softmax: 1 x 31' runs one", "--check looks inside all"], ["--profile"]),
        ({"inside": {"softmax": ["a race"]}}, ["--case 'softmax: 1 x 31' runs one", "--show"], ["--check"]),
        ({"inside": {"softmax": ["a race"]}, "chosen": True}, ["--show"], ["--case", "--check"]),
        ({"is_endless": True}, ["--case"], ["--check", "--show"]),
    ],
)
def test_a_failure_leads_to_what_has_not_been_done_yet(options, named, not_named):
    text = said(PASS, FAIL, **options)
    assert all(one in text for one in named) and not any(one in text for one in not_named), text


def test_where_all_is_well_to_what_looks_deeper():
    assert "python -m task2.test --check looks for races" in said(PASS, PASS) and "--profile" in said(PASS)
    assert said(PASS, chosen=True) == ""
    assert said("not implemented", "not implemented") == ""

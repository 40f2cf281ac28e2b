"""What the failing cases of a part have in common."""

from importlib import import_module

import pytest

from common.compiling.manifest import tasks
from common.diagnosis.diagnose import Diagnosis
from common.testing.case import ERROR, FAIL, PASS, Case, Verdict
from common.testing.only_these import ABOUT, only_these


def verdict(name: str, status: str, **possible: str) -> Verdict:
    case = Case(name, "attention", lambda generator: {}, None, None, 1e-6, ())
    return Verdict(case, status, explain=lambda: Diagnosis(possible=possible))


PASSED = [verdict(name, PASS) for name in ("7 queries, 31 keys", "64 tokens")]


@pytest.mark.parametrize(
    ("failing", "name"),
    [
        (["scores beyond 88", "scores far below 0"], "only large scores"),
        (["queries that may see nothing"], "only empty rows"),
        (["31 queries, 7 keys, causal"], "only causal"),
        (["scores beyond 88", "head_dim 5"], None),
    ],
)
def test_what_all_failing_cases_have_in_common_and_the_others_lack_is_told(
    failing: list[str], name: str | None
) -> None:
    failures = [verdict(one, FAIL) for one in failing]
    told = only_these(failures, [*PASSED, *failures])
    assert (told and told[0]) == name


def test_nothing_is_told_where_too_few_pass_or_something_tells_more() -> None:
    failure = verdict("causal", FAIL)
    assert only_these([failure], [PASSED[0], verdict("causal, 5 tokens", PASS), failure]) is None
    for other in (verdict("causal, 7 tokens", ERROR), verdict("causal, 7 tokens", FAIL, transposed="K is transposed.")):
        assert only_these([failure, other], [*PASSED, failure, other]) is None


@pytest.mark.parametrize(
    ("error", "name"), [(0.02, "only 16 bits"), (3.0, "only causal"), (float("nan"), "only causal")]
)
def test_of_cases_in_16_bits_only_small_errors_are_rounding(error: float, name: str) -> None:
    failure = verdict("bfloat16, causal", FAIL)
    failure.max_error, failure.bound = error, 0.01
    assert only_these([failure], [*PASSED, failure])[0] == name


def test_every_word_that_is_looked_for_is_in_a_case_s_name() -> None:
    """So that a renamed case takes its description with it."""
    names = "\n".join(case.name for task in tasks() for case in import_module(f"{task}.cases").cases())
    words = [word for pattern in ABOUT.values() for word in pattern.pattern.split("|")]
    assert [word for word in words if word not in names] == []


def test_a_call_that_is_known_to_be_wrong_tells_more() -> None:
    causal = verdict("causal, 96 tokens", FAIL)
    assert only_these([causal], [causal, *PASSED])
    causal.in_python = True
    assert only_these([causal], [causal, *PASSED]) is None

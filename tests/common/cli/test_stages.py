"""Stages run by themselves where what is built of them fails."""

import pytest

from common.cli.test import TaskTest, _stages_of
from common.compiling.variant import Variant
from common.testing.case import FAIL, PASS, Case, Verdict


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

"""Task 7's test cases: its own kernels; model.py runs a GPT-2 on them."""

from common.compiling.variant import Variant
from common.testing.case import Case
from task7.cases.kernels import gelu_cases, layernorm_cases

PARTS = {"layernorm": "test only layernorm", "gelu": "test only bias_gelu"}


def cases(variant: Variant = Variant.STUDENT) -> list[Case]:
    """All test cases; each part is worth 0.15 points."""
    return layernorm_cases() + gelu_cases()


def graded() -> list[Case]:
    """The cases that only grading runs, worth 0.7 points: see task7.cases.model_cases."""
    from task7.cases.model_cases import graded_cases  # imports transformers, so only when needed

    return graded_cases()


def warm_up() -> None:
    """Loads what those cases need, once for all processes forked from this one."""
    from task7.cases.model_cases import storyteller

    storyteller()

"""Which failures belong together, and which are told first."""

import io

from rich.console import Console

from common.testing.case import ERROR, FAIL, Case, Verdict
from common.testing.failures import causes_of, print_failures


def failure(name: str, elements: int, **possible: str) -> Verdict:
    case = Case(name, "gemm", lambda generator: {}, None, None, 1e-6, ())
    where = "3 of 9 elements are wrong."
    return Verdict(case, FAIL, possible=possible, mistakes=[*possible], where=where, elements=elements)


def test_what_is_known_is_told_before_what_is_not() -> None:
    unknown = [failure(f"case {i}", 5000) for i in range(3)]
    first, second = causes_of([*unknown, failure("another", 5000, swapped="M and N are exchanged.")])
    assert first.says == "M and N are exchanged." and second.verdicts == unknown


def test_a_tiny_case_alone_does_not_lead() -> None:
    unknown = [failure(f"case {i}", 5000) for i in range(3)]
    tiny = failure("one element", 3, swapped="M and N are exchanged.")
    assert [one.says for one in causes_of([*unknown, tiny])] == ["", "M and N are exchanged."]
    both = causes_of([*unknown, tiny, failure("K = 1", 5, swapped="M and N are exchanged.")])
    assert both[0].says == "M and N are exchanged."


def test_one_error_with_other_sizes_is_told_once() -> None:
    def refused(name: str, shape: list[int], line: int) -> Verdict:
        case = Case(name, "layer", lambda generator: {}, None, None, 1e-6, ())
        return Verdict(case, ERROR, diagnosis=[f"query has shape {shape}"], file_line=f"attention.py:{line}")

    def printed(*failures: Verdict) -> str:
        text = io.StringIO()
        print_failures(Console(file=text, width=100), failures)
        return text.getvalue()

    small, large = refused("small", [2, 3], 7), refused("large", [64, 128], 7)
    assert "query has shape [2, 3]" in printed(small, large)
    assert "The same, with other numbers, holds for: large" in printed(small, large)
    assert "The same holds for: again" in printed(small, refused("again", [2, 3], 7))
    assert len(causes_of([small, refused("elsewhere", [64, 128], 9)])) == 2

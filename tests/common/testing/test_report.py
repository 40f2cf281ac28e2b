"""The table of cases in wide and narrow terminals."""

import io

import pytest
from rich.console import Console

from common.testing.case import Case, Verdict
from common.testing.report import print_report


def verdict(name: str, status: str, **options) -> Verdict:
    case = Case(name, "algorithm", lambda generator: {}, None, None, 1e-6, (), points=0.05)
    return Verdict(case, status, "1x2x113x16, 1x2x203x16", **options)


VERDICTS = [
    verdict("causal, 70 queries, 50 keys", "pass", max_error=1.2e-6, bound=3e-5),
    verdict("masked entries [all], a masked row", "not implemented"),
    verdict("scores that rise and fall", "pass", max_error=1e-6, bound=3e-5, findings=2),
]


@pytest.mark.parametrize("options", [{}, {"no_color": True}])
@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_verdict_is_cut_off(width, options):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, **options)
    print_report(console, "a title", VERDICTS)
    lines = console.file.getvalue().splitlines()
    said = "\n".join(lines)
    assert all(len(line) <= width for line in lines) and "\x1b" not in said and "…" not in said
    assert "not implemented" in said and "0.05/0.05" in said and "1.2e-06" in said and "pass, 2 findings" in said
    assert ("1x2x113x16" in said) == ("bound" in said) == (width >= 100)
    assert "[all]" in said

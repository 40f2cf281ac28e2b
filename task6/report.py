"""Writes what task 6 measured into Results.md."""

from __future__ import annotations

from rich.console import Console

from common import results


def write(console: Console, name: str, block: results.Block) -> int:
    """Puts a block into its place in Results.md and says so.

    Args:
        console: where to.
        name: of the block, "task6 pipeline".
        block: see common.results.

    Returns:
        The exit status: 0, or 1 if it cannot be written.
    """
    try:
        results.report(console, name, block)
    except (results.ResultsError, OSError) as error:
        console.print(str(error), markup=False, highlight=False)
        return 1
    return 0

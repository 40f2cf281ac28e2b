"""Plants mistakes in a real solution: exact replacements in its text, compiled like any other kernel."""

import functools
from collections.abc import Sequence
from pathlib import Path

from common import build

# (what stands in the solution, what is planted, how often it stands there)
Replacement = tuple[str, str, int]


def planted_text(source: Path, replacements: Sequence[Replacement]) -> str:
    """The source's text with the replacements made; all of them must be found as often as they say."""
    text = source.read_text()
    for old, new, times in replacements:
        assert text.count(old) == times, f"{old!r} stands {text.count(old)} times in the solution, not {times}"
        text = text.replace(old, new)
    return text


@functools.cache
def planted_operators(
    task: str, name: str, replacements: tuple[Replacement, ...], backend: str, checked: bool = False
) -> build.Operators:
    """The operators of the task's solution with the replacements made.

    Args:
        task: "task2", ...
        name: of this set of mistakes, unique within the task.
        replacements: see planted_text.
        backend: "cuda" or "simulator".
        checked: the simulator's checked build.
    """
    source = build.kernel_sources(task, solution=True)[0]
    text = planted_text(source, replacements)
    file = build.build_root() / "planted" / task / name / source.name
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists() or file.read_text() != text:
        file.write_text(text)
    return build.load(task, backend=backend, sources=[file], variant=f"planted_{name}", checked=checked)

"""Plants mistakes in a real solution: exact replacements in its text, compiled like any other kernel."""

import functools

from common import build

# (what stands in the solution, what is planted, how often it stands there)
Replacement = tuple[str, str, int]


@functools.cache
def planted_operators(task: str, name: str, replacements: tuple[Replacement, ...], backend: str) -> build.Operators:
    """The operators of the task's solution with the replacements made.

    Args:
        task: "task2", ...
        name: of this set of mistakes, unique within the task.
        replacements: all of them must be found as often as they say.
        backend: "cuda" or "simulator".
    """
    source = build.kernel_sources(task, solution=True)[0]
    text = source.read_text()
    for old, new, times in replacements:
        assert text.count(old) == times, f"{old!r} stands {text.count(old)} times in the solution, not {times}"
        text = text.replace(old, new)
    file = build.build_root() / "planted" / task / name / source.name
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists() or file.read_text() != text:
        file.write_text(text)
    return build.load(task, backend=backend, sources=[file], variant=f"planted_{name}")

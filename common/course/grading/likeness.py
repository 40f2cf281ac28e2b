"""Finds submissions that resemble each other or the solution, with copydetect: compare(console, out, names).

The comparison runs in a separate process with resource limits (apart.py).

copydetect compares tokens by winnowing (Schleimer, Wilkerson, Aiken 2003), as MOSS does. High similarity is a reason
to look and ask, nothing more: the gaps of the early tasks are a few lines that can hardly be written in two ways.
"""

from __future__ import annotations

import contextlib
import io
import signal
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from common.compiling.skeletons import skeleton_of, solution_files
from common.console.terminal import say
from common.course.grading.apart import Refused, call_apart
from common.course.grading.gradebook import write_csv

SHARE = 0.6  # fraction of one's own code that the other contains
TOKENS, WINDOW = 12, 8  # tokens per k-gram; winnowing keeps one k-gram per window
MOST_PAIRS = 20  # printed pairs
SECONDS, FILE_SECONDS = 3600, 5  # limits: of all; of CPU for a file or a pair
SLOW = "not compared: look at this file, whose text is made to take too long"
THE_SOLUTION = "the solution"


def alike(folder: str, names: Sequence[str]) -> list[tuple[float, str, str, str]]:
    """(fraction of the first's own code, the first, the second, the file), most similar first. Requires copydetect.

    Pairs with the solution come before all others. Code from the skeleton is ignored. A file that takes too long comes
    with SLOW in place of the second.
    """
    import copydetect
    import numpy as np

    out = Path(folder)
    found = []
    for solution in solution_files():
        file = f"{solution.parents[1].name}/{solution.name}"
        texts = {name: out / name / "files" / file for name in names if (out / name / "files" / file).is_file()}
        given = skeleton_of(solution.read_text(encoding="utf-8"), solution.name)
        prints = {}
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            language = ".py" if solution.suffix == ".py" else ".cpp"
            skeleton = copydetect.CodeFingerprint(language, TOKENS, 1, fp=_packed(given))  # every k-gram
            boilerplate = np.array(sorted(skeleton.hashes))
            for name, path in {**texts, THE_SOLUTION: solution}.items():
                text = _packed(path.read_text(encoding="utf-8", errors="replace"))
                place = str(path.with_suffix(language))
                try:
                    with _limited():
                        prints[name] = copydetect.CodeFingerprint(
                            place, TOKENS, WINDOW, boilerplate=boilerplate, fp=text
                        )
                except Exception:  # too slow, too large, or more than the lexer can take
                    found.append((0.0, name, SLOW, file))
            order = list(prints)
            for number, first in enumerate(order):
                for second in order[number + 1 :]:
                    if not len(prints[first].hashes) or not len(prints[second].hashes):
                        continue
                    try:
                        with _limited():
                            _, shares, _ = copydetect.compare_files(prints[first], prints[second])
                    except Exception:
                        slow = max(first, second, key=lambda name: len(prints[name].hashes))
                        prints[slow].hashes = ()  # it is compared no more
                        found.append((0.0, slow, SLOW, file))
                        continue
                    if max(shares) >= SHARE:
                        found.append((float(max(shares)), first, second, file))
    return sorted(found, key=lambda one: (SLOW not in one, THE_SOLUTION not in one, -one[0], one[1:]))


def _packed(text: str) -> io.StringIO:
    """The text without blanks that mean nothing: a lexer may take quadratic time for a long run of them."""
    return io.StringIO("\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip()))


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Raises TimeoutError in what takes more than FILE_SECONDS of CPU."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, FILE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def compare(console: Console, out: Path, names: Sequence[str]) -> None:
    """Writes all pairs to likeness.csv and prints the top ones."""
    try:
        pairs = call_apart(f"{__name__}:alike", [str(out), list(names)], seconds=SECONDS)
    except ImportError:
        say(console, "--likeness needs copydetect: pip install -e '.[grade]' -c constraints.txt", "red")
        return
    except Refused as error:
        say(console, f"--likeness: {error}", "red")
        return
    write_csv(
        out / "likeness.csv", [["share", "first", "second", "file"], *([f"{pair[0]:.2f}", *pair[1:]] for pair in pairs)]
    )
    say(
        console,
        f"\nvery similar ({SHARE:.0%} or more of what is not given, by copydetect): a reason to look, not a verdict",
    )
    for share, first, second, file in pairs[:MOST_PAIRS]:
        pair = f"{share:4.0%}  {first} and {second}: {file}"
        say(console, f"  {first}, {file}: {SLOW}" if second == SLOW else f"  {pair}")
    if len(pairs) > MOST_PAIRS:
        say(console, f"  and {len(pairs) - MOST_PAIRS} more pairs, in {out}/likeness.csv")
    if not pairs:
        say(console, "  none")

"""Many versions of a source compiled into one library, with a number that selects the active one at run time.

    Spot(start, end, ((1, "fminf(m, tile_max)"),))       in version 1, replaces text[start:end]
    planted_text(text, spots)                            the text with all versions, with the same number of lines
    SWITCH                                               goes in front: planted(number), plant(number)

    expression   fmaxf(m, tile_max)    (planted(3) ? (tile_max) : (fmaxf(m, tile_max)))
    statements   __syncthreads();      if (planted(7)) {} else {__syncthreads();}

One more version therefore costs no build. The replaced text must be a whole expression or whole statements (which end
in ; or }), and no declaration that later code needs. Spots may be equal or nested; `widened` merges those that
overlap partially. Line numbers are preserved, so locations in reports are valid for the original file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.compiling.gaps import with_own_headers
from common.compiling.places import places_of
from common.compiling.variant import Variant
from common.console.files import write_whole

# text that ends in } may be an expression: State{0, 1}
_STATEMENTS = re.compile(r";\s*$|^[^{]*;[\s\S]*\}\s*$|^\s*(?:#|\{|for\b|if\b|while\b|do\b)[\s\S]*\}\s*$")

SWITCH = """\
#ifdef CUDA_SIMULATOR
inline int planted_number = 0;
#ifdef __SANITIZE_THREAD__  // no access of the kernel's: a checked build does not watch it
__attribute__((no_sanitize_thread))
#endif
__host__ __device__ static inline bool planted(int number) { return planted_number == number; }
extern "C" __attribute__((visibility("default"), weak)) void plant(int number) { planted_number = number; }
#else
__device__ int planted_number_on_device;
static int planted_number_on_host = 0;
__host__ __device__ inline bool planted(int number) {
#ifdef __CUDA_ARCH__
    return planted_number_on_device == number;
#else
    return planted_number_on_host == number;
#endif
}
extern "C" void plant(int number) {
    planted_number_on_host = number;
    cudaMemcpyToSymbol(planted_number_on_device, &number, sizeof(number));
}
#endif
"""


def changed_sources(task: str, file: str, folder: Path, change: Callable[[list[Path]], Sequence[str]]) -> list[Path]:
    """Writes a task's .cu file whose name holds `file` and its own headers, changed, into a folder.

    `change` gets these files, the .cu last, and returns their texts. Returns all .cu files of the task.
    """
    every = places_of(task, Variant.SOLUTION)[0].kernels
    source = next(one for one in every if file in one.name)
    files = with_own_headers([source])
    for one, text in zip(files, change(files), strict=True):
        write_whole(folder / one.name, text)
    return [folder / one.name if one == source else one for one in every]


@dataclass(frozen=True)
class Spot:
    """text[start:end] is replaced by another text in each of some versions: ((number, text), ...)."""

    start: int
    end: int
    texts: tuple[tuple[int, str], ...]


def spots_of(replaced: Iterable[tuple[int, int, int, str]]) -> list[Spot]:
    """Groups (number, start, end, text) tuples into spots, outer ones before those inside them."""
    planted: dict[tuple[int, int], list[tuple[int, str]]] = {}
    for number, start, end, text in replaced:
        planted.setdefault((start, end), []).append((number, text))
    return [Spot(*place, tuple(planted[place])) for place in sorted(planted, key=lambda at: (at[0], -at[1]))]


def widened(replaced: Iterable[tuple[int, int, int, str]], text: str) -> list[tuple[int, int, int, str]]:
    """The same replacements of text, with partially overlapping ones widened to the range that covers them all."""
    every = list(replaced)
    wide = {place: place for place in sorted({(start, end) for _, start, end, _ in every})}
    while crossing := _crossing(sorted(set(wide.values()))):
        hull = (crossing[0][0], crossing[1][1])
        wide = {place: hull if now in crossing else now for place, now in wide.items()}
    found = []
    for number, start, end, new in every:
        first, last = wide[start, end]
        found.append((number, first, last, text[first:start] + new + text[end:last]))
    return found


def _crossing(places: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Two ranges that overlap partially, if there are any."""
    for number, one in enumerate(places):
        for other in places[number + 1 :]:
            if other[0] >= one[1]:
                break
            if one[0] < other[0] and one[1] < other[1]:
                return one, other
    return None


def planted_text(text: str, spots: Sequence[Spot]) -> str:
    """The text with its spots switched, without SWITCH.

    Raises:
        ValueError: two spots overlap, and neither contains the other.
    """
    return _rendered(text, 0, len(text), spots)


def _rendered(text: str, start: int, end: int, spots: Sequence[Spot]) -> str:
    """text[start:end] with its spots switched."""
    made, at = [], start
    while spots:
        spot, *rest = spots
        inside = [one for one in rest if one.start < spot.end]
        for one in inside:
            if one.end > spot.end:
                raise ValueError(f"{text[spot.start : spot.end]!r} and {text[one.start : one.end]!r} overlap")
        right = _rendered(text, spot.start, spot.end, inside)
        statements = bool(_STATEMENTS.search(text[spot.start : spot.end]))  # nested spots may end differently
        made += [text[at : spot.start], _switch(right, statements, spot.texts)]
        at, spots = spot.end, rest[len(inside) :]
    return "".join([*made, text[at:end]])


def _switch(right: str, statements: bool, texts: Sequence[tuple[int, str]]) -> str:
    if statements:
        wrong = "".join(f"if (planted({number})) {{ {_one_line(text)} }} else " for number, text in texts)
        pragma = re.match(r"[ \t]*#", right)  # a preprocessor directive must start a line
        return f"{wrong}{{\n{right} }}" if pragma else f"{wrong}{{ {right} }}"
    wrong = "".join(f"planted({number}) ? ({_one_line(text)}) : " for number, text in texts)
    return f"({wrong}({right}))"


def _one_line(text: str) -> str:
    """The text without comments, pragmas and line ends."""
    text = re.sub(r"//[^\n]*|^[ \t]*#[ \t]*pragma[^\n]*$", "", text, flags=re.MULTILINE)
    return " ".join(text.split())

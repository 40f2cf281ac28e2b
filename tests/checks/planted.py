"""Plants mistakes in a real solution: exact replacements in its text, all of a task's in one build.

    TASK4 = Planted("task4", {"no_rescale": [("state.l[r] *= rescale;", "", 1)], ...})
    ops = TASK4.operators("no_rescale", "simulator")        # or operators(None, ...): nothing planted

Both texts are compiled, and a number decides while the kernel runs which one counts, so a further mistake costs no
further build:

    expression   fmaxf(m, tile_max)    (planted(3) ? (tile_max) : (fmaxf(m, tile_max)))
    statements   __syncthreads();      if (planted(7)) {} else {__syncthreads();}

What is replaced must therefore be a whole expression or whole statements (which end in ; or }), and no declaration that
later code needs. Two mistakes may replace the same text, or one a part of what the other replaces.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import build
from common.checking import FAIL, Case, Verdict, check

# (what stands in the solution, what is planted, how often it stands there). Where only a part of the first text is
# replaced and the rest says which one is meant, the part stands between « and ».
Replacement = tuple[str, str, int]

SWITCH = """\
// Written by tests/checks/planted.py: which of the mistakes below is planted, 0 for none.
#ifdef CUDA_SIMULATOR
static int planted_number = 0;
static inline bool planted(int number) { return planted_number == number; }
extern "C" __attribute__((visibility("default"))) void plant(int number) { planted_number = number; }
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


@dataclass(frozen=True)
class _Spot:
    """text[start:end] is replaced by another text for each of some mistakes: ((number, text), ...)."""

    start: int
    end: int
    texts: tuple[tuple[int, str], ...]


def places(text: str, replacement: Replacement) -> list[tuple[int, int]]:
    """Where the replaced part stands; AssertionError unless it does so as often as the replacement says."""
    old, _, times = replacement
    before, part, after = re.fullmatch("(.*)«(.*)»(.*)", old, re.DOTALL).groups() if "«" in old else ("", old, "")
    found = [match.start() + len(before) for match in re.finditer(re.escape(before + part + after), text)]
    assert len(found) == times, f"{old!r} stands {len(found)} times in the solution, not {times}"
    return [(start, start + len(part)) for start in found]


def planted_text(source: Path, replacements: Sequence[Replacement]) -> str:
    """The source's text with the replacements made one after the other, without a switch: for Python."""
    text = source.read_text()
    for replacement in replacements:
        for start, end in reversed(places(text, replacement)):
            text = text[:start] + replacement[1] + text[end:]
    return text


def switched_text(text: str, mistakes: Sequence[Sequence[Replacement]]) -> str:
    """The text with all mistakes in it; planted(1) chooses the first one."""
    texts: dict[tuple[int, int], list[tuple[int, str]]] = {}
    for number, replacements in enumerate(mistakes, 1):
        for replacement in replacements:
            for place in places(text, replacement):
                texts.setdefault(place, []).append((number, replacement[1]))
    # an outer spot before those inside it
    spots = [_Spot(*place, tuple(texts[place])) for place in sorted(texts, key=lambda place: (place[0], -place[1]))]
    return SWITCH + _rendered(text, 0, len(text), spots)


def _rendered(text: str, start: int, end: int, spots: Sequence[_Spot]) -> str:
    """text[start:end] with its spots switched."""
    made, at = [], start
    while spots:
        spot, *rest = spots
        inside = [one for one in rest if one.start < spot.end]
        for one in inside:
            assert one.end <= spot.end, f"{text[spot.start : spot.end]!r} and {text[one.start : one.end]!r} overlap"
        made += [text[at : spot.start], _switch(_rendered(text, spot.start, spot.end, inside), spot.texts)]
        at, spots = spot.end, rest[len(inside) :]
    return "".join([*made, text[at:end]])


def _switch(right: str, texts: Sequence[tuple[int, str]]) -> str:
    if right.rstrip().endswith((";", "}")):
        # on lines of their own: #pragma unroll needs one
        wrong = "".join(f"if (planted({number})) {{\n{text}\n}} else " for number, text in texts)
        return f"{wrong}{{\n{right}\n}}"
    wrong = "".join(f"planted({number}) ? ({text}) : " for number, text in texts)
    return f"({wrong}({right}))"


class Planted:
    """A task's solution and the mistakes that can be planted in it.

    Args:
        task: "task2", ...
        mistakes: name -> its replacements in the task's .cu file.
        label: tells two sets of mistakes of one task apart.
    """

    def __init__(self, task: str, mistakes: Mapping[str, Sequence[Replacement]], label: str = "mistakes") -> None:
        self.task = task
        self.mistakes = mistakes
        self.label = label

    def operators(self, name: str | None, backend: str, checked: bool = False) -> build.Operators:
        """The solution's operators with this mistake planted, from now until the next call; None: with none.

        Args:
            name: of the mistake.
            backend: "cuda" or "simulator".
            checked: the simulator's checked build.
        """
        ops, plant = self._built(backend, checked)
        plant(0 if name is None else 1 + list(self.mistakes).index(name))
        return ops

    @functools.cache  # noqa: B019 - as many as there are tasks
    def _built(self, backend: str, checked: bool) -> tuple[build.Operators, ctypes._NamedFuncPointer]:
        source = build.kernel_sources(self.task, solution=True)[0]
        file = build.build_root() / "planted" / self.task / self.label / source.name
        text = switched_text(source.read_text(), list(self.mistakes.values()))
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
        ops = build.load(self.task, backend=backend, sources=[file], variant=f"planted_{self.label}", checked=checked)
        return ops, ctypes.CDLL(str(ops.library)).plant


def assert_told(verdict: Verdict, words: str) -> None:
    """The case failed, and the diagnosis holds these words, a regular expression."""
    told = " ".join(verdict.diagnosis)
    assert verdict.status == FAIL and re.search(words, told), told


def assert_all_pass(cases: Iterable[Case], ops: build.Operators) -> None:
    """Every case passes on these operators, but those for a GPU in the simulator."""
    for case in cases:
        verdict = check(case, ops)
        assert verdict.ok or (case.gpu_only and ops.backend == "simulator"), (case.name, verdict.diagnosis)

"""Finds a single edit of the student's kernels that makes the failing cases pass: with_edits(...) adds it to findings.

Mutation-based fault localization (Papadakis, Le Traon: Metallaxis, 2015): all edits are compiled into one library
(common/diagnosis/single_edits.py) and tried one by one on the smallest failing case. Those with a correct output are
tried on the part's other failing cases and on some passing ones. So every reported edit has been verified by a run.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from torch import Tensor

from common.cli.failing_cases import recognized
from common.cli.runner import RunnerOperators
from common.compiling.gaps import functions_behind, with_own_headers
from common.compiling.locking import locked
from common.compiling.objects import CompilerFailed, compile_objects, link
from common.compiling.operators import Library, Operators
from common.compiling.plan import Plan, plans_of
from common.compiling.request import BuildRequest
from common.compiling.result import BuildError
from common.compiling.runner import runner_program
from common.compiling.toolchain import ToolchainError
from common.console.files import write_whole
from common.console.paths import build_root
from common.console.terminal import say, working
from common.diagnosis.diagnose import Diagnosis
from common.diagnosis.single_edits import HEADER, KINDS, Edit, edits_in, switched
from common.inspect.checked_run import small_size, small_size_of
from common.inspect.findings.model import EDIT, Finding, Group, grouped
from common.inspect.findings.report import is_of_an_index, made_in
from common.inspect.own_lines import own_lines
from common.inspect.source_lines import Place
from common.reference.bounds import max_error_of
from common.source.reader import Source, read
from common.testing.calling import Around, Called, CallFailed, InProcess, poisoned_memory
from common.testing.case import ERROR, FAIL, NOT_RUN, Case, Verdict
from common.testing.case_choice import full_name
from common.testing.failures import TELLING, causes_of, failed, failed_stages, of_first_step
from common.testing.first_operator import first_operator
from common.testing.judging import make_inputs, oracle
from common.testing.runner.process import RunnerProcess, is_available
from common.testing.worker.worker import NotLoaded

MOST_EDITS = 2400
MOST_BUILDS = 6  # of the library: edits that do not compile are removed, and it is rebuilt
MOST_SECONDS, MOST_IN_ALL = 10.0, 16.0  # CPU seconds: to try one part's edits; including further cases
PATIENCE, LEAST_PATIENCE = 0.5, 0.02  # seconds that a kernel may run without progress
MOST_FIRST = 2  # failing cases on which all edits are tried, in turn, until few edits help
MOST_ENDLESS = 3  # endless runs at one place, after which its other edits are skipped
MOST_HELPING = 40  # edits to try on further cases
MOST_LINES = 4  # lines with edits that help; if there are more, the cases are inconclusive
MOST_SAID = 2
MOST_OF_LINE = 3  # edits to try on passing cases of other parts
TOLD_FIRST = (  # preferred kinds among edits of one line
    "comparison", "jump", "condition", "rounding", "clamp", "brackets", "operator", "part", "name", "names", "constant",
)  # fmt: skip
# Kinds that often make up for a mistake instead of repairing it
UNLIKELY = ("brackets", "call", "more", "negation", "unit")
MOST_PASSING, MOST_OF_OTHERS = 4, 2  # passing cases tried with an edit: of the part, and of each other part
_ERROR = re.compile(r"([\w.]+\.cuh?):(\d+):\d+:\s+(?:error|required)")


def with_edits(
    console: Console,
    verdicts: Sequence[Verdict],
    inside: Mapping[str, list[Group]],
    ops: Operators | None,
    seed: int,
    built_of: Mapping[str, Sequence[str]],
    sound: Sequence[Case] = (),
) -> dict[str, list[Group]]:
    """Findings in failing cases, part -> findings. If an edit makes a part's failing cases pass, it becomes the first
    finding, and its verdicts keep only measurements.

    Edits are tried for the `undecided` part; for none without `ops`, which name the kernels' sources. Passing cases,
    and the `sound` ones of stages tested separately, must still pass with the edit.
    """
    part = undecided(verdicts, inside, built_of) if ops is not None and is_available() else None
    if part is None:
        return dict(inside)
    failing: dict[str, list[Verdict]] = {part: []}
    for one in verdicts:
        if one.status in (FAIL, ERROR):
            failing.setdefault(one.case.part, []).append(one)
    passing = [one for one in (*(one.case for one in verdicts if one.ok), *sound) if not one.python]
    passing = chosen(passing, part, seed)
    try:
        with working(console, f"{part}: trying single edits of your code ..."):
            helped = _tried(failing, part, passing, inside[part], ops, seed)
    except (ArithmeticError, LookupError, RuntimeError, ValueError) as error:
        # a failure here must not lose the rest of the report
        say(console, f"{part}: edits could not be tried: {type(error).__name__}: {error}", "dim")
        helped = None
    failures = [one for one in verdicts if one.case.part == part and failed(one)]
    if helped is None:
        return dict(inside)
    if recognized(failures):
        place, cause = helped.finding.lines[0], causes_of(of_first_step(failures))[0]
        first = cause.verdicts[0].found
        first.tried = [f"-> {place.shown}", f"      {place.text}", helped.finding.detail]
        # where lines are in the wrong order, each may already be the formula that it should be
        is_vague = any(says == cause.says and name in first.vague for name, says in first.possible.items())
        first.tried_leads = helped.edit.kind == "order" and is_vague
        return dict(inside)
    for one in (one for name in helped.parts for one in failing[name]):
        one.change_found(lambda found: Diagnosis(where=found.where))
    others = {name: groups for name, groups in inside.items() if name not in helped.parts}  # of the same cause
    return {**others, part: [*grouped([("", [helped.finding])]), *inside[part]]}


@dataclass(frozen=True)
class Helped:
    """The edit to report, its finding, and the parts all of whose failing cases pass with it."""

    edit: Edit
    finding: Finding
    parts: list[str]


def undecided(
    verdicts: Sequence[Verdict], inside: Mapping[str, list[Group]], built_of: Mapping[str, Sequence[str]]
) -> str | None:
    """The first checked part that is not built of another failing one and whose failures are not explained by a missing
    barrier; one with a known mistake only if there is no other. Only one, since each takes as long."""
    wrong = {one.case.part for one in verdicts if failed(one)}
    found = []
    for part, groups in inside.items():
        failures = [one for one in verdicts if one.case.part == part and failed(one) and not one.case.python]
        of_index = all(is_of_an_index(one.first) for one in groups)
        if failures and of_index and not failed_stages(part, wrong, built_of):
            found.append((recognized(failures), part))
    return min(found, key=lambda one: one[0], default=(False, None))[1]


def _tried(
    failing: Mapping[str, Sequence[Verdict]],
    part: str,
    passing: Sequence[Case],
    groups: Sequence[Group],
    ops: Operators,
    seed: int,
) -> Helped | None:
    small = {name: [one for one in every if _is_quick(one)] for name, every in failing.items()}
    mine = sorted(small[part], key=lambda one: (one.elements < TELLING, one.elements))
    if not mine:
        return None
    others = {name: [one.case for one in every] for name, every in small.items() if len(every) == len(failing[name])}
    others.pop(part, None)
    operator = first_operator(mine[0].case, seed)
    suspects = {(one.file, one.line): number for number, one in enumerate(_suspects(groups))}
    library = next((one for one in ops.libraries if operator in one.operators), None)
    cannot = contextlib.suppress(CompilerFailed, BuildError, ToolchainError, OSError, NotLoaded)
    with cannot, locked(build_root() / "edits" / ops.task):
        for build in _Build.of(ops, library, operator, suspects) if library else ():
            with poisoned_memory():  # here, because it applies to all threads of the process
                edits = _helping(build, [one.case for one in mine], passing, others, seed)
            if edits:
                counts = {name: len(every) for name, every in others.items()}
                return said(edits, mine, len(failing[part]), suspects, counts)
    return None


def _is_quick(one: Verdict) -> bool:
    """Whether a case is small enough for trying edits."""
    return not one.is_endless and not one.case.python and small_size_of(one) is not None


def chosen(cases: Sequence[Case], part: str, seed: int) -> list[Case]:
    """From each part's small cases, a few of the smallest and largest; more for this part."""
    sized = {case: size for case in cases if (size := small_size(case, seed)) is not None}
    found = []
    for one in dict.fromkeys(case.part for case in sized):
        every = sorted((case for case in sized if case.part == one), key=sized.get)
        most = MOST_PASSING if one == part else MOST_OF_OTHERS
        found += dict.fromkeys([*every[:most], *every[-most:]])
    return found


def _suspects(groups: Iterable[Group]) -> list[Place]:
    """The lines named by the findings, most likely first."""
    found = []
    for finding in (one for group in groups for one in group.findings):
        found += [place for _, several in made_in(finding) for place in several]
        found += [one.place for one in finding.accesses if one.place]
    return list(dict.fromkeys(found))


# ---- the library with all edits


@dataclass
class _Build:
    """A library and its edits by number."""

    operators: tuple[str, str]
    library: Library
    edits: dict[int, Edit]

    @classmethod
    def of(cls, ops: Operators, library: Library, operator: str, suspects: Mapping) -> Iterator[_Build]:
        """A library with the edits of suspected lines; then one with the others."""
        kernels = [one for one in library.sources if one.suffix == ".cu"]
        sources = {file: source for file in with_own_headers(kernels) if (source := read(file))}
        functions = functions_behind(operator, library.sources)
        every = []
        for file, source in sources.items():
            every += edits_in(source, functions, own_lines(str(file)))
        every.sort(key=lambda one: _rank(one, suspects))
        likely = [one for one in every if _rank(one, suspects)[0] == 0]
        for some in likely, every[len(likely) : MOST_EDITS]:
            if build := some and cls._with(dict(enumerate(some, 1)), ops, library, kernels, sources):
                yield build

    @classmethod
    def _with(
        cls,
        edits: dict[int, Edit],
        ops: Operators,
        library: Library,
        kernels: Sequence[Path],
        sources: Mapping[Path, Source],
    ) -> _Build | None:
        """A library with those of these edits that compile; None if none does within MOST_BUILDS."""
        folder = build_root() / "edits" / ops.task
        write_whole(folder / "single_edits.h", HEADER)
        request = BuildRequest(
            ops.task, backend="simulator", sources=[_written(folder, one, "") for one in kernels], label="edits"
        )
        plan = plans_of(request)[0]
        for _ in range(MOST_BUILDS):
            at = {}
            for file, source in sources.items():
                mine = {number: one for number, one in edits.items() if one.file == str(file)}
                text, lines = switched("\n".join(source.lines), mine)
                _written(folder, file, f'#include "single_edits.h"\n{text}')
                at[file.name] = {line + 1: number for line, number in lines.items()}
            try:
                _compiled(plan)
            except CompilerFailed as error:
                wrong = set(_not_compiling(str(error), at))
                if not wrong:
                    raise
                edits = {number: one for number, one in edits.items() if number not in wrong}
            else:
                its = Library(plan.name, plan.library, (*plan.place.kernels, plan.place.binding))
                return cls((ops.task, "edits"), its, edits)
        return None


def _rank(edit: Edit, suspects: Mapping[tuple[str, int], int]) -> tuple[int, bool, int, int]:
    """Sort key, smallest first: edits of suspected lines, and kinds with few edits."""
    rank, kind = suspects.get((edit.file, edit.line)), KINDS.index(edit.kind)
    tier = (0 if edit.kind != "more" else 2) if rank is not None else max(1, kind - KINDS.index("constant") + 2)
    return tier, kind >= KINDS.index("constant"), rank or 0, kind


def _written(folder: Path, file: Path, text: str) -> Path:
    write_whole(folder / file.name, text)
    return folder / file.name


def _compiled(plan: Plan) -> None:
    """Compiles and links the library fast: little optimization, no sanitizers, no debug info."""
    jobs, linker_flags = plan.for_simulator()
    quick = re.compile(r"-O\d|-g\d|-f(?:no-)?sanitize.*|-W.*")
    mine = {one.stem for one in plan.place.kernels}
    for number, (source, flags) in enumerate(jobs):
        if source.name.split(".")[0] in mine:
            jobs[number] = source, [*(flag for flag in flags if not quick.match(flag)), "-Og", "-w"]
    link(compile_objects(jobs), linker_flags, plan.library)


def _not_compiling(log: str, at: Mapping[str, Mapping[int, int]]) -> Iterator[int]:
    """The edits that caused the compiler's errors."""
    for file, line in _ERROR.findall(log):
        if number := at.get(file, {}).get(int(line)):
            yield number


class _QuickRunner(RunnerProcess):
    """A runner that often ends: without a search for descendants, and without the lines of its crashes."""

    def __init__(self, program: Path, library: Path, patience: float) -> None:
        super().__init__(program, [library], {"SIMULATOR_TIMEOUT": f"{patience:g}", "SIMULATOR_LINES": "0"})

    def _status(self, process: int) -> int:
        os.kill(process, signal.SIGKILL)
        return os.waitpid(process, 0)[1]


class _Trial:
    """A process that runs edits, one at a time; `patience`: seconds that a kernel may run without progress."""

    def __init__(self, build: _Build, patience: float) -> None:
        self.process = _QuickRunner(runner_program(), build.library.path, patience)
        self._caller = InProcess(RunnerOperators(*build.operators, [build.library], self.process))
        self._seconds, self.is_endless = 0.0, False  # is_endless: of the last call

    @property
    def seconds(self) -> float:
        """CPU seconds of all calls."""
        return self._seconds + self.process.seconds

    def is_right(self, edit: int, run: Run) -> bool:
        """Whether a call with this edit (0: none) gives the correct output."""
        start, self.is_endless = time.thread_time(), False
        try:
            self.process.begin()
            self.process.ask(0, "choose_edit", edit)
            called = self._caller.call(run.case, run.inputs, Around(large=run.draw % 2 == 1))
        except CallFailed as failed:
            self.is_endless = failed.is_endless
            self._seconds += self.process.seconds
            self.process.end_process()  # its damage must not affect the next call
            return False
        finally:
            self._seconds += time.thread_time() - start
        return is_right(called, run)


@dataclass(frozen=True, eq=False)
class Run:
    """A case with one draw of its inputs and the expected output."""

    case: Case
    draw: int
    inputs: dict[str, Tensor]
    ref: Tensor
    bound: float


def is_right(called: Called, run: Run) -> bool:
    """Whether a call of a run's case gave its expected output."""
    out = called.out
    right = out is not None and out.shape == run.ref.shape and not called.problems
    return right and max_error_of(out, run.ref) <= run.bound


def runs(case: Case, seed: int) -> Iterator[Run]:
    for draw in range(case.draws):
        inputs = make_inputs(case, seed, draw)
        yield Run(case, draw, inputs, *oracle(case, inputs))


def _helping(
    build: _Build, failing: Sequence[Case], passing: Sequence[Case], others: Mapping[str, Sequence[Case]], seed: int
) -> dict[Edit, list[str]]:
    """The edits with which all these cases pass -> the other parts whose failing cases then all pass too."""
    with contextlib.ExitStack() as stack:
        patient = _Trial(build, PATIENCE)
        stack.callback(patient.process.close)
        some = [run for case in failing[:MOST_FIRST] for run in runs(case, seed)]
        wrong = [run for run in some if not patient.is_right(0, run)]
        least = max(LEAST_PATIENCE, 3 * patient.seconds / len(some))  # an edit may cause an endless loop
        quick = [_Trial(build, least) for _ in range(min(2, os.cpu_count() or 1))]
        for one in quick:
            stack.callback(one.process.close)
        helping: list[int] = []
        endless: Counter[int] = Counter()  # endless runs by place

        def work(trial: _Trial, left: Iterator[int], run: Run) -> None:
            while sum(one.seconds for one in quick) <= MOST_SECONDS and len(helping) <= MOST_HELPING:
                if not (number := next(left, 0)):
                    return
                place = build.edits[number].changes[0].start
                if endless[place] < MOST_ENDLESS and trial.is_right(number, run):
                    helping.append(number)
                endless[place] += trial.is_endless

        every = list(build.edits)
        for run in wrong:
            helping.clear()
            left = iter(every)
            with ThreadPoolExecutor(len(quick)) as pool:
                list(pool.map(lambda trial, left=left, run=run: work(trial, left, run), quick))
            if len(helping) <= MOST_HELPING:
                break  # otherwise the case depends on uninitialized memory, or is too weak
            every = [*sorted(helping), *left]  # an edit that does not help here does not explain all cases

        runs_of = functools.cache(lambda case: list(runs(case, seed)))

        def passes(number: int, cases: Sequence[Case]) -> bool:
            quick_enough = sum(one.seconds for one in (patient, *quick)) < MOST_IN_ALL
            return quick_enough and all(patient.is_right(number, run) for case in cases for run in runs_of(case))

        mine = [*failing, *(case for case in passing if case.part == failing[0].part)]
        of_line: dict[tuple[str, int], list[int]] = {}
        for number in sorted(helping, key=lambda one: order(build.edits[one])):
            numbers = of_line.setdefault((build.edits[number].file, build.edits[number].line), [])
            if len(numbers) < MOST_OF_LINE and passes(number, mine):
                numbers.append(number)
        numbers = [number for every in of_line.values() for number in every]
        sure = [number for number in numbers if passes(number, passing)]
        return {
            build.edits[number]: [part for part, cases in others.items() if passes(number, cases)] for number in sure
        }


def order(edit: Edit) -> tuple[int, int]:
    """Sort key for edits of one line; the smallest is reported."""
    return [*dict.fromkeys([*TOLD_FIRST, *KINDS])].index(edit.kind), len(edit.says)


def said(
    edits: Mapping[Edit, list[str]],
    failures: Sequence[Verdict],
    count: int,
    suspects: Mapping[tuple[str, int], int],
    others: Mapping[str, int],
) -> Helped | None:
    """Reports edits with which these failures, out of `count`, pass. At most two lines are named; edits with which most
    of the `others` (part -> cases) pass too come first."""
    lines: dict[tuple[str, int], Edit] = {}
    for one in sorted(edits, key=lambda one: (-len(edits[one]), order(one))):
        lines.setdefault((one.file, one.line), one)
    if not 0 < len(lines) <= MOST_LINES:
        return None
    by_line = {
        at: (-len(edits[one]), one.undoes, one.kind in UNLIKELY, suspects.get(at, len(suspects)))
        for at, one in lines.items()
    }
    first, *more = (lines[at] for at in sorted(lines, key=by_line.get))
    more = [one for one in more if edits[one] == edits[first]][: MOST_SAID - 1]
    part = failures[0].case.part
    every = "both" if count == 2 else f"all {count}"
    were_run = all(one.status != NOT_RUN for one in failures)
    passes = (
        f"{every} {'failing cases' if were_run else 'cases'} of {part} pass"
        if count > 1
        else f"{full_name(failures[0].case)} passes"
    )
    if count > len(failures):
        passes = f"{len(failures)} of the {count} failing cases of {part} pass; the rest was not tried"
    elif edits[first]:
        counts = {1: "that", 2: "both"}
        also = [f"{counts.get(others[name], f'all {others[name]}')} of {name}" for name in edits[first]]
        passes += f", as well as {' and '.join(also)}"
    text = f"{first.says}, {passes}."
    for one in more:
        text += f" {'They also pass' if count > 1 else 'It also passes'} {one.says} in line {one.line}."
    several = sum((one.file, one.line) == (first.file, first.line) for one in edits) > 1
    if first.undoes or first.kind in UNLIKELY or several or len(lines) > 1:
        text += " The repair may be another one, there or nearby."
    places = tuple(Place(one.file, one.line) for one in (first, *more))
    finding = Finding(EDIT, detail=text[0].upper() + text[1:], lines=places)
    return Helped(first, finding, [part, *edits[first]])

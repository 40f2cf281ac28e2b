"""Speed points, on a GPU: part_of(part, time_all(...), ...) -> PartOutcome.

The grader does not trust any time reported by the student's process. Its own clock runs from "go" until the sum of the
output arrives (timed.py); the messages' own time is measured with a call that does nothing, and subtracted.

- The peer runs in a separate sandbox, before the student's process starts and again after it has ended; the shorter
  time counts, so that no submission gains by slowing the peer down.
- Inputs and weights are new in every round. Some rounds, chosen at random and revealed only after they are timed, must
  show their output: it is compared with the float64 reference and with the sum reported earlier.
- Before "go" the grader fills the L2 cache with its own data.
- A speedup beyond IMPLAUSIBLE is flagged for a human.
"""

from __future__ import annotations

import importlib
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from common.course.grading.outcome import CaseOutcome, PartOutcome
from common.course.grading.timed import NOTHING
from common.reference.bounds import max_error_of
from common.testing.case import ERROR, FAIL, PASS, Case
from common.testing.judging import make_inputs, oracle
from common.testing.worker.messages import receive, send

ROUNDS, WARM_UP, SHOWN = 20, 3, 5
IMPLAUSIBLE = 2.5  # speedup over the peer: more than the fastest known kernels reach here
ROUND_SECONDS = 60  # for every answer except the first, which includes compilation
LOAD_SECONDS = 600
SUM_DIFFERS = 1e-5  # relative to the sum of absolute values
MOST_BYTES = 1 << 28
DEVICE = "cuda"


class NotTimed(RuntimeError):
    """Timing failed; the message says why."""


@dataclass
class Times:
    """The timed rounds of one configuration.

    Attributes:
        seconds: of every counted round, by the grader's clock.
        shown: (round, the output, the sum reported for it).
    """

    seconds: list[float] = field(default_factory=list)
    shown: list[tuple[int, Tensor, float]] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def take_times(
    connection: Connection,
    configuration: int | str,
    inputs: Callable[[int], Mapping[str, Tensor]],
    rounds: int = ROUNDS,
    warm_up: int = WARM_UP,
    shown: int = SHOWN,
    before: Callable[[], Any] = lambda: None,
    now: Callable[[], float] | None = None,
) -> Times:
    """Times the rounds of one configuration.

    Args:
        connection: to a process that runs serve_rounds.
        configuration: the configuration to run.
        inputs: round -> inputs, new ones for each round.
        rounds: number of counted rounds, after warm_up uncounted ones.
        shown: how many of the counted rounds must show their output.
        before: called right before the clock starts.
        now: the clock; None: time.perf_counter.

    Raises:
        NotTimed: the process ended, timed out, or sent an unreadable message.
    """
    now = now or time.perf_counter
    times, looked_at = Times(), set(random.SystemRandom().sample(range(rounds), shown))
    try:
        for number in range(-warm_up, rounds):
            send(connection, {"do": "round", "configuration": configuration}, inputs(number))
            _answer(connection, "ready", LOAD_SECONDS if number == -warm_up else ROUND_SECONDS)
            before()
            begun = now()
            send(connection, {"do": "go"})
            told, _ = _answer(connection, "done", ROUND_SECONDS)
            seconds = now() - begun
            look = number in looked_at
            send(connection, {"do": "show" if look else "next"})
            if number >= 0:
                times.seconds.append(seconds)
            if look:
                _, tensors = _answer(connection, "shown", ROUND_SECONDS)
                times.shown.append((number, tensors["out"], float(told["sum"])))
    except (EOFError, OSError, ValueError, KeyError, TypeError) as error:
        raise NotTimed(f"no answer that can be read: {type(error).__name__}: {error}") from None
    return times


def _answer(connection: Connection, word: str, seconds: float) -> tuple[dict, dict[str, Tensor]]:
    if not connection.poll(seconds):
        raise NotTimed(f"no answer within {seconds:g} seconds")
    message, tensors = receive(connection, MOST_BYTES)
    if message.get("problem"):
        raise NotTimed(str(message["problem"])[:2000])
    if not message.get(word):
        raise NotTimed(f"it said {str(message)[:100]}, not {word!r}")
    return message, tensors


def wrong_outputs(times: Times, case: Case, inputs: Callable[[int], Mapping[str, Tensor]], device: str) -> list[str]:
    """Errors in the shown outputs; a sentence each."""
    found = []
    for number, out, told in times.shown:
        ref, bound = oracle(case, {name: x.to(device) for name, x in inputs(number).items()})
        if out.shape != ref.shape or out.dtype != torch.float32:
            found.append(f"Round {number}: an output {list(out.shape)} of {out.dtype}; {list(ref.shape)} is right.")
            continue
        out = out.to(ref.device)
        if not (error := max_error_of(out, ref)) <= bound:
            found.append(f"Round {number}, a timed call: the output errs by {error:.1e}; at most {bound:.1e} is right.")
        if not abs(float(out.double().sum()) - told) <= SUM_DIFFERS * float(out.double().abs().sum()):
            found.append(f"Round {number}: the output is not the one whose sum was told while the clock ran.")
    return found


@dataclass(frozen=True)
class Timed:
    """The result for one configuration.

    Attributes:
        name: "4, 1024, 1024, 16".
        ours, peers: median seconds.
        wrong: see wrong_outputs; or why there is no time.
    """

    name: str
    ours: float = 0.0
    peers: float = 0.0
    wrong: Sequence[str] = ()

    @property
    def speedup(self) -> float:
        return self.peers / self.ours if self.ours > 0 and not self.wrong else 0.0


def net(times: Times, idle: float) -> float:
    """The median minus the message overhead `idle`, in seconds; at least a microsecond."""
    return max(times.median - idle, 1e-6)


def part_of(part: str, timed: Sequence[Timed], points_for: Callable[[float], float], most: float) -> PartOutcome:
    """The part's outcome: a case for each configuration."""
    share, cases = most / len(timed), []
    earned = [points_for(one.speedup) if not one.wrong else 0.0 for one in timed]
    for one, points in zip(timed, earned, strict=True):
        status = ERROR if one.wrong and not one.ours else FAIL if one.wrong or points < share else PASS
        words = [*one.wrong] or [
            f"{one.speedup:.2f} times as fast as the peer ({1e3 * one.ours:.3f} and {1e3 * one.peers:.3f} ms): "
            f"{points:g} of {share:g} points"
        ]
        cases.append(CaseOutcome(one.name, status, share, diagnosis=words))
    wrong = any(one.wrong for one in timed)
    why = "A timed call's output is wrong, or there is none: the part earns nothing." if wrong else ""
    return PartOutcome(part, 0.0 if wrong else round(sum(earned), 6), most, why, cases=cases)


def implausible(task: str, timed: Sequence[Timed]) -> list[str]:
    """Flags for a human."""
    return [
        f"{task}: {one.name}: {one.speedup:.1f} times as fast as PyTorch, which is implausible: read the code"
        for one in timed
        if one.speedup > IMPLAUSIBLE
    ]


def has_speed(task: str) -> bool:
    """Whether a part of the task is graded on speed."""
    return importlib.util.find_spec(f"{task}.cases.speed") is not None


def time_all(task: str, seed: Callable[[str], int], ours: Callable[[], Any], peers: Callable[[], Any]) -> list[Timed]:
    """Times every configuration of a task.

    Args:
        task: "task4"; its cases.speed has CONFIGURATIONS and case_of.
        seed: name of the inputs -> their seed.
        ours, peers: each starts a new process and returns a context manager that yields the connection to it.
    """
    speed = importlib.import_module(f"{task}.cases.speed")
    fill = _fill_l2()
    first = _configurations(speed, peers, seed, fill)
    student = _configurations(speed, ours, seed, fill)
    again = _configurations(speed, peers, seed, fill)
    if broken := first.why or again.why:
        raise NotTimed(f"the peer was not timed: {broken}")
    idle, found = min(first.idle, again.idle), []  # not the student's, which could be slow at doing nothing
    for number, configuration in enumerate(speed.CONFIGURATIONS):
        if number >= len(student.times):
            found.append(Timed(configuration.name, wrong=[student.why]))
            continue
        case, mine = speed.case_of(configuration), student.times[number]
        wrong = wrong_outputs(mine, case, _inputs(case, seed), DEVICE)
        best = min(net(one.times[number], idle) for one in (first, again))
        found.append(Timed(configuration.name, net(mine, idle), best, wrong))
    return found


def _inputs(case: Case, seed: Callable[[str], int]) -> Callable[[int], Mapping[str, Tensor]]:
    return lambda number: make_inputs(case, seed(f"{case.name} round {number}"))


@dataclass
class _Process:
    """Results of one process: times of the configurations up to the one that failed, and why it failed; idle: median
    seconds of a call that does nothing."""

    times: list[Times] = field(default_factory=list)
    idle: float = 0.0
    why: str = ""


def _configurations(speed, process, seed, fill) -> _Process:
    found = _Process()
    try:
        with process() as connection:
            for number, configuration in enumerate(speed.CONFIGURATIONS):
                inputs = _inputs(speed.case_of(configuration), seed)
                found.times.append(take_times(connection, number, inputs, before=fill))
            idle = take_times(connection, NOTHING, lambda _: {"x": torch.zeros(4)}, shown=0, before=fill)
            found.idle = idle.median
    except NotTimed as error:
        found.why = str(error)
    return found


def _fill_l2() -> Callable[[], None]:
    """Returns a function that reads more data than any L2 cache holds, in this process, and waits until it is done."""
    other = torch.zeros(1 << 27, device="cuda")

    def fill() -> None:
        other.sum()
        torch.cuda.synchronize()

    return fill

"""Runs one problem on all versions: checks, memory, times.

    runner = Runner(seconds=300, rounds=20)
    for problem in problems: records = runner.run(problem, versions, share)

A version that is wrong is not timed, nor one that would need more memory than there is or that takes too long; its
record says so. The versions that are timed take turns within every round. Those that are much slower than the fastest
have a few rounds of their own, beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from common.measure.benchmark.problem import Problem, Version
from common.measure.benchmark.sample import Errors, Sample
from common.measure.timing import CudaStopwatch, Stopwatch, Timing, measure

LONGEST = 0.4  # seconds; a version whose run would take longer is left out
SLOW = 5  # times the fastest version's time
SLOW_SECONDS = 0.3  # for the rounds of the slow ones
FEWEST_ROUNDS = 3
MEMORY_SHARE = 0.85  # of the free memory that a version may need
WARM_UP_BELOW = 0.03  # seconds; where a round takes longer, the first calls are warm-up enough


class Memory(Protocol):
    """Counts the bytes that a call takes."""

    def free(self) -> float:
        """Bytes that can be allocated; infinite if unknown."""
        ...

    def peak(self, call: Callable[[], object]) -> int | None:
        """The most bytes that PyTorch's allocator held during the call and not before; None if unknown."""
        ...


class CudaMemory:
    """Memory of the current GPU."""

    def free(self) -> float:
        unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return torch.cuda.mem_get_info()[0] + unused

    def peak(self, call: Callable[[], object]) -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = call()
        torch.cuda.synchronize()
        del result
        return torch.cuda.max_memory_allocated() - before


@dataclass(frozen=True)
class Record:
    """What was found out about one version on one problem.

    Attributes:
        problem: what was computed.
        version: the version's name.
        label, ours: of the version.
        timing: None if it was not timed; then `left_out` says why.
        errors: None if it was not compared.
        memory: the most bytes that it held beyond its inputs (a backward pass with its forward pass); None if unknown.
        stored_bytes: see Version.
        left_out: "memory: needs 69 GiB", "time: about 2.8 s per run", "wrong", or what it raised; "" if it was timed.
    """

    problem: Problem
    version: str
    label: str
    ours: bool = False
    timing: Timing | None = None
    errors: Errors | None = None
    memory: int | None = None
    stored_bytes: float = 0.0
    left_out: str = ""

    @property
    def rate(self) -> float | None:
        """Operations, or bytes, per second."""
        return self.problem.work / self.timing.seconds if self.timing else None

    @property
    def failed(self) -> bool:
        """Whether it is wrong, or one of ours that did not run."""
        wanting = self.left_out.split(":")[0] in ("memory", "time", "")
        return self.left_out == "wrong" or (self.ours and not wanting)


@dataclass(frozen=True)
class _FirstCalls:
    """Two calls that do not count: the first is compared, the second is timed, to plan the rounds.

    Attributes:
        seconds: the time of the second call.
        takes: the same with all that belongs to it: its preparation, filling the cache.
        errors, memory: see Record.
    """

    seconds: float
    takes: float
    errors: Errors | None
    memory: int | None


class Runner:
    """Measures problem after problem within a budget of time.

    Args:
        seconds: for all problems; where it is short there are fewer rounds, but at least 3.
        rounds: the most timed runs of each version.
        stopwatch, memory, device, clock: for tests; by default the GPU and the time of day.
    """

    def __init__(
        self,
        seconds: float,
        rounds: int,
        stopwatch: Stopwatch | None = None,
        memory: Memory | None = None,
        device: str = "cuda",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.rounds = rounds
        self.stopwatch = stopwatch or CudaStopwatch()
        self.memory = memory or CudaMemory()
        self.device = device
        self.clock = clock
        self.ends = clock() + seconds
        self._rates: dict[tuple[str, str], float] = {}  # (version, setting) -> work per second on the last problem

    def run(self, problem: Problem, versions: Mapping[str, Version], share: float) -> list[Record]:
        """One record per version, in the order of `versions`.

        Args:
            problem: what to compute.
            versions: who computes it.
            share: of the time that is left, 0 .. 1.
        """
        until = self.clock() + share * max(0.0, self.ends - self.clock())
        inputs = problem.make_inputs(self.device)
        records = {name: self._refused(problem, name, version) for name, version in versions.items()}
        sample = problem.sample(inputs) if None in records.values() else None
        first: dict[str, _FirstCalls] = {}
        for name, version in versions.items():
            if records[name] is None:
                found = self._first_calls(problem, name, version, inputs, sample)
                if isinstance(found, Record):
                    records[name] = found
                else:
                    first[name] = found
        del inputs, sample
        try:
            timings = self._time(problem, versions, first, until)
        except torch.OutOfMemoryError:  # one fits, all together do not: those that store scores must go
            large = [name for name in first if versions[name].stored_bytes]
            records |= {name: _record(problem, name, versions[name], left_out="memory") for name in large}
            first = {name: calls for name, calls in first.items() if name not in large}
            timings = self._time(problem, versions, first, until)
        for name, timing in timings.items():
            self._rates[name, problem.setting] = problem.work / timing.seconds
            records[name] = _record(
                problem, name, versions[name], timing=timing, errors=first[name].errors, memory=first[name].memory
            )
        return [record for record in records.values() if record]

    def _refused(self, problem: Problem, name: str, version: Version) -> Record | None:
        """A record that says why this version is not even tried."""
        if version.stored_bytes > MEMORY_SHARE * self.memory.free():
            needs = f"memory: needs {version.stored_bytes / 2**30:.0f} GiB"
            return _record(problem, name, version, left_out=needs)
        rate = self._rates.get((name, problem.setting))
        if rate and problem.work / rate > LONGEST:
            about = f"time: about {problem.work / rate:.1f} s per run"
            return _record(problem, name, version, left_out=about)
        return None

    def _first_calls(
        self, problem: Problem, name: str, version: Version, inputs: Sequence[Any], sample: Sample
    ) -> Record | _FirstCalls:
        """A record if the version is wrong or does not run."""
        outputs = []
        try:
            memory = self.memory.peak(lambda: outputs.append(version.prepare(*inputs)()))
            errors = sample.compare(outputs.pop()) if version.compared else None
            if errors and not errors.ok:
                return _record(problem, name, version, errors=errors, left_out="wrong")
            start = self.clock()
            seconds = self.stopwatch.seconds(version.prepare(*inputs))
            return _FirstCalls(seconds, self.clock() - start, errors, memory)
        except torch.OutOfMemoryError:
            return _record(problem, name, version, left_out="memory")
        except (RuntimeError, ValueError, NotImplementedError) as error:
            words = str(error).strip() or type(error).__name__
            return _record(problem, name, version, left_out=words.splitlines()[0])

    def _time(
        self, problem: Problem, versions: Mapping[str, Version], first: Mapping[str, _FirstCalls], until: float
    ) -> dict[str, Timing]:
        """Timings of all that came through their first calls, in as many rounds as fit before `until`."""
        timings: dict[str, Timing] = {}
        fastest = min((calls.seconds for calls in first.values()), default=0.0)
        slow = {name: versions[name] for name, calls in first.items() if calls.seconds > SLOW * fastest}
        fast = {name: versions[name] for name in first if name not in slow}
        for name, version in slow.items():
            rounds = rounds_in(SLOW_SECONDS, first[name].takes, FEWEST_ROUNDS, fewest=1)
            timings |= self._measure(problem, {name: version}, rounds, warm_up=0)
        if fast:
            takes = sum(first[name].takes for name in fast)
            warm_up = 1 if takes < WARM_UP_BELOW else 0
            rounds = rounds_in(until - self.clock(), takes, self.rounds)
            timings |= self._measure(problem, fast, rounds, warm_up)
        return timings

    def _measure(
        self, problem: Problem, versions: Mapping[str, Version], rounds: int, warm_up: int
    ) -> dict[str, Timing]:
        prepared: dict[str, Callable] = {}

        def make_inputs() -> tuple[dict[str, Callable]]:
            prepared.clear()  # a backward pass keeps what its forward pass made: gone before the next is made
            inputs = problem.make_inputs(self.device)
            for name, version in versions.items():
                prepared[name] = version.prepare(*inputs)
            return (prepared,)

        calls = {name: lambda prepared, name=name: prepared[name]() for name in versions}
        return measure(calls, make_inputs, rounds, warm_up, self.stopwatch)


def _record(problem: Problem, name: str, version: Version, **found) -> Record:
    return Record(problem, name, version.label, version.ours, stored_bytes=version.stored_bytes, **found)


def rounds_in(seconds: float, round_takes: float, most: int, fewest: int = FEWEST_ROUNDS) -> int:
    """How many rounds fit into the time, but at least `fewest` and at most `most`, which goes first."""
    return min(most, max(fewest, int(seconds / round_takes)))


def shares(problems: Sequence[Problem]) -> list[float]:
    """Of the time left when each problem's turn comes; larger problems get more, small ones not too little."""
    largest = max(problem.work for problem in problems)
    weights = [problem.work + 0.2 * largest for problem in problems]
    return [weight / sum(weights[number:]) for number, weight in enumerate(weights)]

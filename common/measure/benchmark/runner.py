"""Runs one problem on all versions: checks, memory, times.

    runner = Runner(seconds=300, rounds=20)
    for problem in problems: records = runner.run(problem, versions, share)

A version is not timed if it is wrong, needs more memory than available, or takes too long; its record says so. The
versions take turns within every round. Those much slower than the fastest have a few separate rounds beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from common.measure.benchmark.problem import Problem, Version
from common.measure.benchmark.sample import Errors, Sample
from common.measure.timing import CudaStopwatch, Stopwatch, Timing, measure

LONGEST = 0.4  # seconds; a version whose run would take longer is skipped
SLOW = 5  # multiple of the fastest version's time from which a version is slow
SLOW_SECONDS = 0.3  # time budget for the rounds of slow versions
FEWEST_ROUNDS = 3
MEMORY_SHARE = 0.85  # fraction of free memory that a version may need
WARM_UP_BELOW = 0.03  # seconds; if a round takes longer, the first calls are enough warm-up


class CudaMemory:
    """Memory of the current GPU."""

    def free(self) -> float:
        """Bytes that can be allocated."""
        unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return torch.cuda.mem_get_info()[0] + unused

    def peak(self, call: Callable[[], object]) -> int | None:
        """Peak bytes held by PyTorch's allocator during the call, minus those held before; None if unknown."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = call()
        torch.cuda.synchronize()
        del result
        return torch.cuda.max_memory_allocated() - before


@dataclass(frozen=True)
class Record:
    """The results of one version on one problem.

    Attributes:
        problem: the problem.
        version: the version's name.
        label, ours: the version's attributes.
        timing: None if it was not timed; `left_out` then says why.
        errors: None if it was not compared.
        memory: peak bytes beyond its inputs (for a backward pass, including its forward pass); None if unknown.
        stored_bytes: see Version.
        left_out: "memory: needs 69 GiB", "time: about 2.8 s per run", "wrong", or its error; "" if it was timed.
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
        """Operations or bytes per second."""
        return self.problem.work / self.timing.seconds if self.timing else None

    @property
    def failed(self) -> bool:
        """Whether it is wrong, or ours and did not run."""
        wanting = self.left_out.split(":")[0] in ("memory", "time", "")
        return self.left_out == "wrong" or (self.ours and not wanting)


@dataclass(frozen=True)
class _FirstCalls:
    """Two uncounted calls: the first one's output is compared, the second is timed to plan the rounds.

    Attributes:
        seconds: the time of the second call.
        takes: the same including its overhead: preparation and filling the cache.
        errors, memory: see Record.
    """

    seconds: float
    takes: float
    errors: Errors | None
    memory: int | None


class Runner:
    """Measures one problem after another within a time budget.

    Args:
        seconds: budget for all problems; if it is short, there are fewer rounds, but at least 3.
        rounds: maximum number of timed runs of each version.
        stopwatch, memory, device, clock: for tests; by default the GPU and the system clock.
    """

    def __init__(
        self,
        seconds: float,
        rounds: int,
        stopwatch: Stopwatch | None = None,
        memory: CudaMemory | None = None,
        device: str = "cuda",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.rounds = rounds
        self.stopwatch = stopwatch or CudaStopwatch()
        self.memory = memory or CudaMemory()
        self.device = device
        self.clock = clock
        self.ends = clock() + seconds
        self._rates: dict[tuple[str, str], float] = {}  # (version, setting) -> rate on the last problem

    def run(self, problem: Problem, versions: Mapping[str, Version], share: float) -> list[Record]:
        """One record per version, in the order of `versions`.

        Args:
            problem: the problem.
            versions: the versions that compute it.
            share: fraction of the remaining time, 0 .. 1.
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
        except torch.OutOfMemoryError:  # each fits alone but not all together: drop those that store scores
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
        """A record saying why this version is not tried; None if it is."""
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
        """Makes the first calls; returns a record if the version is wrong or does not run."""
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
        """Times all versions that passed their first calls, in as many rounds as fit before `until`."""
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
            prepared.clear()  # a backward pass keeps its forward pass's tensors: free them before the next
            inputs = problem.make_inputs(self.device)
            for name, version in versions.items():
                prepared[name] = version.prepare(*inputs)
            return (prepared,)

        calls = {name: lambda prepared, name=name: prepared[name]() for name in versions}
        return measure(calls, make_inputs, rounds, warm_up, self.stopwatch)


def _record(problem: Problem, name: str, version: Version, **found) -> Record:
    return Record(problem, name, version.label, version.ours, stored_bytes=version.stored_bytes, **found)


def rounds_in(seconds: float, round_takes: float, most: int, fewest: int = FEWEST_ROUNDS) -> int:
    """The number of rounds that fit into the time, at least `fewest` and at most `most`, which takes precedence."""
    return min(most, max(fewest, int(seconds / round_takes)))


def shares(problems: Sequence[Problem]) -> list[float]:
    """The fraction of the remaining time for each problem; larger ones get more, but small ones not too little."""
    largest = max(problem.work for problem in problems)
    weights = [problem.work + 0.2 * largest for problem in problems]
    return [weight / sum(weights[number:]) for number, weight in enumerate(weights)]

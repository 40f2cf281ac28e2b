"""Runs one problem of `python -m task4.benchmark` on all its peers: checks, memory, times.

    runner = Runner(Kernels("cuda"), budget=300, rounds=20)
    for problem in problems: records = runner.run(problem, peers, weight_left)

A peer that is wrong is not timed, nor one that would need more memory than there is or that takes too long; its record
says so. The peers that are timed take turns within every round. Those that are much slower than the fastest have a few
rounds of their own, beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from common.measure.timing import CudaStopwatch, Stopwatch, Timing, measure
from task4.tools.benchmark.check import Errors, Sample
from task4.tools.benchmark.grid import Problem
from task4.tools.benchmark.peers import Kernels, Peer

LONGEST = 0.4  # seconds; a peer whose run would take longer is left out
SLOW = 5  # times the fastest peer's time
SLOW_SECONDS = 0.3  # for the rounds of the slow ones
FEWEST_ROUNDS = 3
MEMORY_SHARE = 0.85  # of the free memory that a peer may need
WARM_UP_BELOW = 0.03  # seconds; where a round takes longer, the first calls are warm-up enough


class Memory(Protocol):
    """Counts the bytes that a call takes."""

    def free(self) -> float:
        """Bytes that can be had; infinite if nobody knows."""
        ...

    def peak(self, call: Callable[[], object]) -> int | None:
        """The most bytes that PyTorch's allocator held during the call and not before; None if nobody knows."""
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
    """What was found out about one peer on one problem.

    Attributes:
        timing: None if it was not timed; then `left_out` says why.
        errors: None if it was not run.
        memory: the most bytes that it held beside its inputs (a backward pass with its forward pass); None if unknown.
        left_out: "memory: needs 69 GiB", "time: about 2.8 s per run", "wrong", or what it raised; "" if it was timed.
    """

    problem: Problem
    peer: str
    timing: Timing | None = None
    errors: Errors | None = None
    memory: int | None = None
    left_out: str = ""

    @property
    def rate(self) -> float | None:
        """Floating-point operations per second."""
        return self.problem.flops / self.timing.seconds if self.timing else None


@dataclass(frozen=True)
class _FirstCalls:
    """Two calls of a peer that do not count: the first compares, the second is timed, to plan the rounds.

    Attributes:
        seconds: the time of the second call.
        takes: the same with all that belongs to it: inputs of a backward pass, filling the cache.
        errors, memory: see Record.
    """

    seconds: float
    takes: float
    errors: Errors
    memory: int | None


class Runner:
    """Measures problem after problem within a budget of time.

    Args:
        kernels: the course's operators.
        budget: seconds for all problems; where it is short, there are fewer rounds, but at least 3.
        rounds: at most so many timed runs of each peer.
        stopwatch, memory, device, clock: for tests; by default the GPU and the time of day.
    """

    def __init__(
        self,
        kernels: Kernels,
        budget: float,
        rounds: int,
        stopwatch: Stopwatch | None = None,
        memory: Memory | None = None,
        device: str = "cuda",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.kernels = kernels
        self.rounds = rounds
        self.stopwatch = stopwatch or CudaStopwatch()
        self.memory = memory or CudaMemory()
        self.device = device
        self.clock = clock
        self.ends = clock() + budget
        self._rates: dict[tuple[str, str], float] = {}  # (peer, setting) -> operations per second at the last length

    def run(self, problem: Problem, peers: Mapping[str, Peer], share: float) -> list[Record]:
        """One record per peer, in the order of `peers`.

        Args:
            problem: what to compute.
            peers: who computes it.
            share: of the time that is left, 0 .. 1.
        """
        until = self.clock() + share * max(0.0, self.ends - self.clock())
        inputs = problem.make_inputs(self.device)
        records = {name: self._refused(problem, name, peer) for name, peer in peers.items()}
        sample = Sample.of(problem, inputs) if None in records.values() else None
        first: dict[str, _FirstCalls] = {}
        for name, peer in peers.items():
            if records[name] is None:
                found = self._first_calls(problem, name, peer, inputs, sample)
                if isinstance(found, Record):
                    records[name] = found
                else:
                    first[name] = found
        del inputs, sample
        try:
            timings = self._time(problem, peers, first, until)
        except torch.OutOfMemoryError:  # one fits, all together do not: those that store scores must go
            large = [name for name in first if problem.direction in peers[name].score_buffers]
            records |= {name: Record(problem, name, left_out="memory") for name in large}
            first = {name: calls for name, calls in first.items() if name not in large}
            timings = self._time(problem, peers, first, until)
        for name, timing in timings.items():
            self._rates[name, problem.setting] = problem.flops / timing.seconds
            records[name] = Record(problem, name, timing, first[name].errors, first[name].memory)
        return [record for record in records.values() if record]

    def _refused(self, problem: Problem, name: str, peer: Peer) -> Record | None:
        """A record that says why this peer is not even tried."""
        buffers = peer.score_buffers.get(problem.direction, 0.0)
        needed = buffers * problem.scores_bytes
        if needed > MEMORY_SHARE * self.memory.free():
            return Record(problem, name, left_out=f"memory: needs {needed / 2**30:.0f} GiB")
        rate = self._rates.get((name, problem.setting))
        if rate and problem.flops / rate > LONGEST:
            return Record(problem, name, left_out=f"time: about {problem.flops / rate:.1f} s per run")
        return None

    def _first_calls(
        self, problem: Problem, name: str, peer: Peer, inputs: Sequence[Tensor], sample: Sample
    ) -> Record | _FirstCalls:
        """A record if the peer is wrong or does not run."""

        def prepared() -> Callable:
            return peer.prepare[problem.direction](self.kernels, *inputs, problem.causal)

        outputs = []
        try:
            memory = self.memory.peak(lambda: outputs.append(prepared()()))
            errors = sample.compare(outputs.pop())
            if not errors.ok:
                return Record(problem, name, errors=errors, left_out="wrong")
            start = self.clock()
            seconds = self.stopwatch.seconds(prepared())
            return _FirstCalls(seconds, self.clock() - start, errors, memory)
        except torch.OutOfMemoryError:
            return Record(problem, name, left_out="memory")
        except (RuntimeError, ValueError, NotImplementedError) as error:
            words = str(error).strip() or type(error).__name__
            return Record(problem, name, left_out=words.splitlines()[0])

    def _time(
        self, problem: Problem, peers: Mapping[str, Peer], first: Mapping[str, _FirstCalls], until: float
    ) -> dict[str, Timing]:
        """Timings of all that came through their first calls, in as many rounds as fit before `until`."""
        timings: dict[str, Timing] = {}
        fastest = min((calls.seconds for calls in first.values()), default=0.0)
        slow = {name: peers[name] for name, calls in first.items() if calls.seconds > SLOW * fastest}
        fast = {name: peers[name] for name in first if name not in slow}
        for name, peer in slow.items():
            rounds = rounds_in(SLOW_SECONDS, first[name].takes, FEWEST_ROUNDS, fewest=1)
            timings |= self._measure(problem, {name: peer}, rounds, warm_up=0)
        if fast:
            takes = sum(first[name].takes for name in fast)
            warm_up = 1 if takes < WARM_UP_BELOW else 0
            rounds = rounds_in(until - self.clock(), takes, self.rounds)
            timings |= self._measure(problem, fast, rounds, warm_up)
        return timings

    def _measure(self, problem: Problem, peers: Mapping[str, Peer], rounds: int, warm_up: int) -> dict[str, Timing]:
        prepared: dict[str, Callable] = {}

        def make_inputs() -> tuple[dict[str, Callable]]:
            prepared.clear()  # a backward pass keeps what its forward pass made: gone before the next is made
            inputs = problem.make_inputs(self.device)
            for name, peer in peers.items():
                prepared[name] = peer.prepare[problem.direction](self.kernels, *inputs, problem.causal)
            return (prepared,)

        calls = {name: lambda prepared, name=name: prepared[name]() for name in peers}
        return measure(calls, make_inputs, rounds, warm_up, self.stopwatch)


def rounds_in(seconds: float, round_takes: float, most: int, fewest: int = FEWEST_ROUNDS) -> int:
    """How many rounds fit into the time, but at least `fewest` and at most `most`, which goes first."""
    return min(most, max(fewest, int(seconds / round_takes)))


def shares(problems: list[Problem]) -> list[float]:
    """Of the time left when each problem's turn comes; larger problems get more, small ones not too little."""
    largest = max(problem.flops for problem in problems)
    weights = [problem.flops + 0.2 * largest for problem in problems]
    return [weight / sum(weights[number:]) for number, weight in enumerate(weights)]

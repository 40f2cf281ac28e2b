"""A benchmark without a GPU: a clock that only calls advance, memory of any size, versions that take a given time."""

from __future__ import annotations

from dataclasses import dataclass

from common.measure.benchmark.problem import Version
from common.measure.benchmark.runner import Record, Runner
from common.measure.benchmark.sample import Errors
from common.measure.limits import Limits
from common.measure.timing import Timing

LIMITS = Limits(4e12, {"float32": 5e13, "tf32": 3.5e14, "bfloat16": 7e14})


class Clock:
    """Time passes only in timed calls; each takes as long as its version specifies."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def seconds(self, call) -> float:
        taken = call()
        self.now += taken
        return taken


class Bytes:
    """A GPU with this much memory."""

    def __init__(self, free: float = 1e12) -> None:
        self.bytes = free

    def free(self) -> float:
        return self.bytes

    def peak(self, call) -> int:
        call()
        return 4096


class Anything:
    """A sampler that finds nothing wrong."""

    def compare(self, outputs) -> Errors:
        return Errors(1e-7, 1e-7, 2e-7)


@dataclass(frozen=True)
class Sleep:
    """A problem of a given size; a version takes its number of seconds per 40 units of size."""

    size: int = 40
    setting: str = "asleep"
    picture: str = "asleep"
    limit: str = "bfloat16"
    unit: str = "TFLOP/s"

    @property
    def column(self) -> str:
        return str(self.size)

    @property
    def x(self) -> float:
        return self.size

    @property
    def work(self) -> float:
        return 1e12 * self.size / 40

    scores_bytes, tensor_bytes, least_bytes = 4000, 1000, 2000

    def make_inputs(self, device) -> tuple[int]:
        return (self.size,)

    def sample(self, inputs) -> Anything:
        return Anything()


def takes(
    seconds: float, log: list[str] | None = None, name: str = "", error: Exception | None = None, **options
) -> Version:
    """A version that takes this long and records its name when called."""

    def prepare(size: int):
        def call() -> float:
            if error:
                raise error
            if log is not None:
                log.append(name)
            return seconds * size / 40

        return call

    return Version(name or "it", prepare, **options)


def runner(budget: float = 100.0, rounds: int = 20, memory: float = 1e12) -> Runner:
    """Runs on a machine with this much time and memory."""
    clock = Clock()
    return Runner(budget, rounds, clock, Bytes(memory), "cpu", clock)


def timed(version: str, seconds: float, problem=None, ours: bool = True, **more) -> Record:
    """The record of one run."""
    given = {"timing": Timing((seconds,)), "errors": Errors(1e-3, 1e-3, 2e-3), "memory": 1 << 20} | more
    return Record(problem or Sleep(), version, f"the {version}", ours, **given)

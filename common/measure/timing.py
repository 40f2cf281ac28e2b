"""Times calls on a GPU, several peers side by side.

    timings = measure({"ours": ops.softmax, "torch": lambda x: torch.softmax(x, -1)}, make_inputs)
    timings["ours"].seconds          the median
    middle(times)                    80% of them are between these two

To make the numbers comparable:

- CUDA events surround the call, so earlier GPU work does not count.
- Before every timed call, the L2 cache is filled with other data, so that inputs come from memory. This also keeps the
  GPU busy while Python issues the call, so that GPU time is measured, not Python's.
- Every round creates new inputs, the same for all peers; each round starts with a different peer.
- The first rounds do not count: clocks ramp up, libraries select kernels, memory is allocated.
- The median is reported.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

FLUSH_BYTES = 512 * 2**20  # at least four times any GPU's L2 cache
FLUSHES = 4  # over 0.4 ms of work, enough for Python to issue the call


@dataclass(frozen=True)
class Timing:
    """The runs of one peer, in seconds."""

    runs: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.runs)


class Stopwatch(Protocol):
    """Anything that can time a call."""

    def seconds(self, call: Callable[[], Any]) -> float:
        """How long the call takes."""
        ...


class CudaStopwatch:
    """Times one call with CUDA events on the current stream, the L2 cache filled with other data beforehand.

    Raises:
        RuntimeError: torch sees no GPU.
    """

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("times are measured on a GPU, and torch sees none")
        self._event = torch.cuda.Event
        size = max(FLUSH_BYTES, 4 * torch.cuda.get_device_properties().L2_cache_size)
        self._other_data = torch.zeros(size // 4, device="cuda")

    def seconds(self, call: Callable[[], Any]) -> float:
        start, end = self._event(enable_timing=True), self._event(enable_timing=True)
        # Reads, not writes: they leave no dirty lines to be written back during the call
        for _ in range(FLUSHES):
            self._other_data.sum()
        start.record()
        result = call()
        end.record()
        end.synchronize()
        del result  # kept alive until here: freeing memory is not part of the call
        return start.elapsed_time(end) * 1e-3


def measure(
    peers: Mapping[str, Callable[..., Any]],
    make_inputs: Callable[[], Sequence[Any]],
    rounds: int = 20,
    warm_up: int = 3,
    stopwatch: Stopwatch | None = None,
) -> dict[str, Timing]:
    """Times all peers on the same inputs, in turn.

    Args:
        peers: name -> function of the inputs.
        make_inputs: called once per round; every peer gets its result as positional arguments.
        rounds: counted runs of each peer.
        warm_up: uncounted rounds before those.
        stopwatch: default CudaStopwatch().

    Returns:
        A Timing of `rounds` runs for each name, in the order of `peers`.

    Raises:
        ValueError: no peers, rounds < 1 or warm_up < 0.
    """
    if not peers:
        raise ValueError("peers is empty; there must be at least one")
    if rounds < 1 or warm_up < 0:
        raise ValueError(f"rounds is {rounds} and warm_up {warm_up}; they must be at least 1 and 0")
    stopwatch = stopwatch or CudaStopwatch()
    names = list(peers)
    runs: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warm_up + rounds):
        inputs = make_inputs()
        first = number % len(names)
        for name in names[first:] + names[:first]:
            seconds = stopwatch.seconds(lambda peer=peers[name], given=inputs: peer(*given))
            if number >= warm_up:
                runs[name].append(seconds)
    return {name: Timing(tuple(times)) for name, times in runs.items()}


def middle(times: Sequence[float]) -> tuple[float, float]:
    """The first and the last decile: 80% of the times are between them."""
    if len(times) < 2:
        return times[0], times[0]
    deciles = statistics.quantiles(times, n=10, method="inclusive")
    return deciles[0], deciles[-1]

"""How long calls take on a GPU, several peers side by side.

    timings = measure({"ours": ops.softmax, "torch": lambda x: torch.softmax(x, -1)}, make_inputs)
    timings["ours"].seconds          the median
    middle(times)                    80% of them are between these two

What makes the numbers comparable:

- CUDA events around the call; what the GPU did before has nothing to do with it.
- Before every timed call the L2 cache is filled with other data, so that inputs come from memory. This also keeps the
  GPU busy while Python issues the call, so that the time is the GPU's and not Python's.
- Every round makes new inputs, and all peers get the same ones; each round starts with another peer.
- The first rounds do not count: clocks rise, libraries choose kernels, memory is allocated.
- The median is reported, with the fastest and the slowest run next to it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

FLUSH_BYTES = 512 * 2**20  # at least four times any GPU's L2 cache
FLUSHES = 4  # over 0.4 ms of work, in which Python issues the call


@dataclass(frozen=True)
class Timing:
    """The runs of one peer, in seconds."""

    runs: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.runs)

    @property
    def fastest(self) -> float:
        return min(self.runs)

    @property
    def slowest(self) -> float:
        return max(self.runs)


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
        # Reading leaves nothing in the cache that would have to be written back during the call
        for _ in range(FLUSHES):
            self._other_data.sum()
        start.record()
        result = call()
        end.record()
        end.synchronize()
        del result  # alive until here: freeing memory is not part of the call
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
        make_inputs: called once a round; every peer is called with what it returned, as positional arguments.
        rounds: how many runs of each peer count.
        warm_up: rounds before those.
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
    """The two times between which 80% of these are: the first and the last decile."""
    if len(times) < 2:
        return times[0], times[0]
    deciles = statistics.quantiles(times, n=10, method="inclusive")
    return deciles[0], deciles[-1]

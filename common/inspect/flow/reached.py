"""What a correct answer depends on, and what may have reached the thread that stores it.

Needs(reference, inputs)       the input elements that an element of the correct answer depends on
reached(trace, sources, ...)   the input elements that each thread's results may contain

An answer depends on the elements with a nonzero derivative in fp32. The set that reaches a thread is stored as the bits
of an integer. It is an overestimate: everything a thread has read counts for everything it writes, and if lanes of a
warp exchange registers, all of them get what any of them has. So an element that does not reach a thread cannot be in
its results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from common.inspect.flow.sources import Sources
from common.inspect.flow.trace import Trace

MOST_PAIRS = 2_000_000  # pairs of threads where one reads what the other wrote
WARP = 32
SMALLEST = torch.finfo(torch.float32).tiny  # in fp32 a smaller weight underflows to 0, so a kernel may skip it


class Needs:
    """The dependencies of the elements of the correct answer.

    Args:
        reference: reference(**inputs) computes it.
        inputs: the inputs, on the CPU.

    Raises:
        RuntimeError: the reference cannot be differentiated.
    """

    def __init__(self, reference: Callable[..., Tensor], inputs: Mapping[str, Tensor]) -> None:
        self.leaves = {  # unused parts are NaN, which would contaminate every derivative
            name: x.double().nan_to_num(nan=0.5, posinf=torch.inf, neginf=-torch.inf).requires_grad_()
            for name, x in inputs.items()
            if x.is_floating_point()
        }
        with torch.enable_grad():
            self._ref = reference(**{**inputs, **self.leaves}).reshape(-1)
        if not self._ref.requires_grad:
            raise RuntimeError("the reference has no derivative")
        generator = torch.Generator().manual_seed(0)
        self._factors = 1 + torch.rand(self._ref.numel(), generator=generator, dtype=torch.float64)  # no cancellation

    def of(self, elements: Sequence[int]) -> dict[str, Tensor]:
        """For each input, the mask of the elements these depend on, bool [numel]; inputs with unknown dependencies are
        omitted.

        Elements that are 0 are ignored: the origin of a 0 cannot be determined.
        """
        at = torch.as_tensor(elements)
        weighed = (self._ref[at] * self._factors[at]).sum()
        grads = torch.autograd.grad(weighed, list(self.leaves.values()), retain_graph=True, allow_unused=True)
        found = {}
        for name, grad in zip(self.leaves, grads, strict=True):
            if grad is None:
                found[name] = torch.zeros(self.leaves[name].numel(), dtype=torch.bool)
            elif not bool(torch.isnan(grad).any()):
                found[name] = (grad.reshape(-1).abs() >= SMALLEST) & (self.leaves[name].detach().reshape(-1) != 0)
        return found


def threads_of(trace: Trace) -> np.ndarray:
    """For each access, an index of its thread over all launches; threads of earlier launches come first."""
    return np.unique(trace.actors(), return_inverse=True)[1]


def reached(trace: Trace, sources: Sources, threads: np.ndarray) -> list[int] | None:
    """For each thread, the elements that reach it: bit i for element i of all inputs; None if it takes too long."""
    count = int(threads.max(initial=-1)) + 1
    found = _read_by(threads, sources, count)
    passes = np.flatnonzero(sources.made_by >= 0)
    launch_of = np.zeros(count, dtype=np.int64)
    launch_of[threads] = trace.launch
    readers, writers = threads[passes], threads[sources.made_by[passes]]
    pairs = np.unique(readers * count + writers)
    if pairs.size > MOST_PAIRS:
        return None
    pairs = np.stack([pairs // count, pairs % count], 1)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    warps = _warps(trace, threads, count)
    for launch in range(len(trace.launches)):
        mine = pairs[launch_of[pairs[:, 0]] == launch]
        within = [(int(a), int(b)) for a, b in mine if launch_of[b] == launch]
        for reader, writer in mine.tolist():
            found[reader] |= found[writer]
        for group in warps:  # each thread reads what the one before it has, the first what the last has
            within += zip(group, [group[-1], *group[:-1]], strict=True) if launch_of[group[0]] == launch else ()
        changed = bool(within)
        while changed:
            changed = False
            for reader, writer in within:
                more = found[reader] | found[writer]
                changed |= more != found[reader]
                found[reader] = more
    return found


def bits_of(mask: np.ndarray) -> int:
    """bool [n] -> an integer with bit i for element i."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


def mask_of(bits: int, count: int) -> np.ndarray:
    """The inverse of bits_of."""
    data = np.frombuffer(bits.to_bytes((count + 7) // 8, "little"), np.uint8)
    return np.unpackbits(data, count=count, bitorder="little").astype(bool)


def _read_by(threads: np.ndarray, sources: Sources, count: int) -> list[int]:
    """The elements that each thread reads itself."""
    reads = np.flatnonzero(sources.of_read >= 0)
    pairs = np.unique(threads[reads] * sources.count + sources.of_read[reads])
    owner, element = pairs // sources.count, pairs % sources.count
    begins = np.searchsorted(owner, np.arange(count + 1))
    found = []
    for thread in range(count):
        mask = np.zeros(sources.count, dtype=bool)
        mask[element[begins[thread] : begins[thread + 1]]] = True
        found.append(bits_of(mask))
    return found


def _warps(trace: Trace, threads: np.ndarray, count: int) -> list[list[int]]:
    """The threads of each warp, for launches in which lanes exchange registers."""
    exchanging = trace.exchanging()
    first = np.unique(threads, return_index=True)[1]
    groups: dict[tuple, list[int]] = {}
    for thread, access in enumerate(first):
        if exchanging[trace.launch[access]]:
            who = int(trace.launch[access]), int(trace.block[access]), int(trace.thread[access]) // WARP
            groups.setdefault(who, []).append(thread)
    return [group for group in groups.values() if len(group) > 1]

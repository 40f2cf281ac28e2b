"""Determines which input element each read of a trace delivers, also if threads passed it on through memory.

A write of a number that the same thread has just read is a copy: inputs are random, so equal numbers are the same
element. Exceptions: NaN and infinity, which propagate through computations, and lines where other threads store
computed numbers, since a sum of one term with weight 1 also equals an element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.inspect.flow.trace import Memory, Trace

LEAST_FLOAT = 1 << 23  # bits of the smallest normal float32
WARP = 32
MOSTLY = 0.9  # fraction of a thread's reads that are copies if it loads them for others
WILD = np.uint64(0x7F800000)  # bits that are all set in a float that is NaN or infinite
MOST_HOPS = 24  # log2 of the longest chain of copies
NARROW = (torch.float16, torch.bfloat16)  # dtypes to which a case's float32 inputs may be converted


@dataclass
class Sources:
    """Inputs and output among the memories of a trace.

    Attributes:
        names: names of the inputs that were found.
        memory_of: the memory of each of them.
        first: the index of each one's first element; elements are numbered across all inputs.
        count: the total number of elements.
        of_read: for each read, the input element that it delivers; -1 if none.
        made_by: for each read of a computed value, the write that stored it; -1 for an input's value or a plain 0,
            which carries no information.
        copied_from: for each write, the read whose value it copies; -1 if it was computed.
        unknown: whether an array other than the inputs had contents before the call, whose origin is then unknown, such
            as an input that was transposed by the host.
        outputs: the memories that form the output, each with its start index in the output.
    """

    names: list[str]
    memory_of: dict[str, int]
    first: dict[str, int]
    count: int
    of_read: np.ndarray
    made_by: np.ndarray
    copied_from: np.ndarray
    unknown: bool
    outputs: list[tuple[int, int]]


def sources_of(trace: Trace, inputs: Mapping[str, Tensor], out: Tensor) -> Sources:
    """Determines the origin of the reads of a trace.

    Args:
        trace: the call's trace.
        inputs: the case's inputs.
        out: the returned output.
    """
    of_memory: dict[int, str] = {}
    for number, memory in enumerate(trace.memories):
        if memory.initial is not None:
            name = next((name for name, x in inputs.items() if name not in of_memory.values() and _is(memory, x)), None)
            if name is not None:
                of_memory[number] = name
    first, count = {}, 0
    for name in of_memory.values():
        first[name] = count
        count += inputs[name].numel()
    base = np.full(len(trace.memories), -1, dtype=np.int64)
    for number, name in of_memory.items():
        base[number] = first[name]
    begin = np.where(base[trace.memory] >= 0, base[trace.memory] + trace.element, -1)
    copied_from = _without_lost_addends(trace, _copies(trace), base)
    origin = _origins(trace, copied_from)  # for each write, the first write of its value
    held = np.where(copied_from[origin] >= 0, begin[copied_from[origin]], -1)
    chosen = _may_be_chosen(trace, copied_from, begin)
    computed = np.where((copied_from[origin] < 0) & _is_result(trace, copied_from, begin) | chosen[origin], origin, -1)
    reads, known = ~trace.is_write, trace.seen >= 0
    of_read = np.where(reads, np.where(known, held[trace.seen], begin), -1)
    made_by = np.where(reads & known, computed[trace.seen], -1)
    unknown = any(
        memory.array.initialized and number not in of_memory and not _is_of_whole_numbers(memory)
        for number, memory in enumerate(trace.memories)
    )
    memory_of = {name: number for number, name in of_memory.items()}
    return Sources(list(first), memory_of, first, count, of_read, made_by, copied_from, unknown, _outputs(trace, out))


def _is_result(trace: Trace, copied_from: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Mask of the accesses whose number may have been computed. A 0 counts only if its line also stores other numbers
    that are not copies, and if its thread reads clearly more of the inputs than it stores in shared memory; otherwise
    it pads a tile."""
    of_numbers = np.unique(trace.lines[trace.is_write & (trace.value != 0) & (copied_from < 0)])
    _, group = np.unique(_who(trace), return_inverse=True)
    direct, count = ~trace.is_write & (begin >= 0), int(group.max(initial=-1)) + 1
    elements = int(begin.max(initial=0)) + 1
    read = np.bincount(np.unique(group[direct] * elements + begin[direct]) // elements, minlength=count)
    reduces = np.bincount(group[trace.is_write & trace.shared], minlength=count) < MOSTLY * read
    return (trace.value != 0) | (trace.is_write & np.isin(trace.lines, of_numbers) & reduces[group])


def _may_be_chosen(trace: Trace, copied_from: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Mask of the copies of an input element that may be a maximum or other selection among several: those by threads
    that read clearly more of its elements than they copy; by warps if lanes exchange numbers."""
    direct = ~trace.is_write & (begin >= 0)
    copies = trace.is_write & (copied_from >= 0) & (begin[copied_from] >= 0)
    array = np.where(copies, trace.memory[copied_from], trace.memory)
    _, group = np.unique(_who(trace) * (len(trace.memories) + 1) + array, return_inverse=True)
    elements, count = int(begin.max(initial=0)) + 1, int(group.max(initial=-1)) + 1
    read = np.unique(group[direct] * elements + begin[direct]) // elements
    copied = np.unique(group[copies] * elements + begin[copied_from[copies]]) // elements
    chooses = np.bincount(copied, minlength=count) < MOSTLY * np.bincount(read, minlength=count)
    return copies & chooses[group]


def _who(trace: Trace) -> np.ndarray:
    """An index of each access's thread, or of its warp if lanes exchange numbers."""
    return trace.actors(np.where(trace.exchanging()[trace.launch], WARP, 1))


def _is(memory: Memory, x: Tensor) -> bool:
    """Whether a memory initially held an input."""
    array = memory.array
    if array.name and x.is_floating_point() and memory.unit == 2:
        return any(_same(memory.array.initial, x.to(dtype)) for dtype in NARROW)
    return _same(memory.array.initial, x)


def _is_of_whole_numbers(memory: Memory) -> bool:
    """Whether a memory contains small integers, such as counts, or is shared: it then delivers no input elements."""
    if memory.initial is None:
        return True
    bits = memory.initial.astype(np.uint32).view(np.int32) if memory.unit == 4 else memory.initial.astype(np.int64)
    return memory.unit >= 4 and bool((np.abs(bits.astype(np.int64)) < LEAST_FLOAT).all())


def _same(data: bytes, x: Tensor) -> bool:
    return x.numel() > 0 and len(data) == x.nbytes and data == x.contiguous().view(torch.uint8).numpy().tobytes()


def _copies(trace: Trace) -> np.ndarray:
    """For each write, the same thread's last earlier read of exactly this number; -1 if none, and for 0."""
    who = trace.actors()
    order = np.lexsort((trace.value, who))  # stable: by thread, by number, then by time
    is_read = ~trace.is_write[order]
    last = np.maximum.accumulate(np.where(is_read, np.arange(order.size), -1))
    same = (last >= 0) & (who[order[last]] == who[order]) & (trace.value[order[last]] == trace.value[order])
    found = np.full(order.size, -1, dtype=np.int64)
    found[order] = np.where(same & ~is_read & (trace.value[order] != 0), order[last], -1)
    of_float = np.array([one.unit == 4 for one in trace.memories])[trace.memory]
    found[of_float & (trace.value & WILD == WILD)] = -1
    # the threads that store at a line, and those that copy there
    stores = trace.is_write & (trace.value != 0)
    pairs = (np.unique(np.stack([trace.lines[some], who[some]]), axis=1)[0] for some in (stores, stores & (found >= 0)))
    (lines, every), (copying, some) = (np.unique(one, return_counts=True) for one in pairs)
    copied = dict(zip(copying.tolist(), some.tolist(), strict=True))
    computing = [
        one for one, count in zip(lines.tolist(), every.tolist(), strict=True) if copied.get(one, 0) < MOSTLY * count
    ]
    found[np.isin(trace.lines, computing)] = -1
    return found


def _without_lost_addends(trace: Trace, copied_from: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Removes copies from shared memory of values that are not input elements: a sum unchanged by a tiny addend is not
    a copy of the larger addend."""
    origin = _origins(trace, copied_from)
    source = copied_from[origin]
    of_input = (source >= 0) & (base[trace.memory[source]] >= 0)
    return np.where((copied_from >= 0) & trace.shared[copied_from] & ~of_input, -1, copied_from)


def _origins(trace: Trace, copied_from: np.ndarray) -> np.ndarray:
    """For each write, the first one in its chain of copies; itself if it is not a copy."""
    every = np.arange(trace.value.size)
    before = np.where(copied_from >= 0, trace.seen[copied_from], -1)
    before = np.where(before >= 0, before, every)
    for _ in range(MOST_HOPS):
        before = before[before]
    return before


def _outputs(trace: Trace, out: Tensor) -> list[tuple[int, int]]:
    """The memories whose final state is the output or, for a call that returns several tensors, a piece of it."""
    data = out.detach().cpu().contiguous()
    wanted = np.frombuffer(data.view(torch.uint8).numpy().tobytes(), dtype=f"<u{data.element_size()}")
    found: list[tuple[int, int]] = []
    for number, memory in enumerate(trace.memories):
        if memory.is_shared or memory.unit != data.element_size():
            continue
        mine = np.flatnonzero((trace.memory == number) & trace.is_write)
        if not mine.size:
            continue
        size = memory.array.bytes // memory.unit
        last = np.zeros(size, dtype=np.uint64) if memory.initial is None else memory.initial[:size].copy()
        last[trace.element[mine]] = trace.value[mine]  # the last write wins
        known = np.unique(trace.element[mine]) if memory.initial is None else np.arange(size)
        for start in range(0, wanted.size - size + 1, size):
            if bool((last[known] == wanted[start + known]).all()) and all(start != at for _, at in found):
                found.append((number, start))
                break
    # if all is NaN or 0, a smaller array may match a piece by chance
    whole = [one for one in found if trace.memories[one[0]].array.bytes == data.nbytes]
    pieces = found if sum(trace.memories[one].array.bytes for one, _ in found) == data.nbytes else []
    return whole[-1:] or pieces

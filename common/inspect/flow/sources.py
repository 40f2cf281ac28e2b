"""Which element of an input each read of a trace delivers, also where threads passed it on through memory.

A number that is written where the same thread has just read the same number is a copy: inputs are random, so two equal
numbers are the same element. Not NaN and infinity, which come out of what is computed with them; nor where other
threads store what they computed: a sum of one term, with the weight 1, is an element as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.inspect.flow.trace import Memory, Trace

LEAST_FLOAT = 1 << 23  # the bits of a float32 that is not 0 and no subnormal number
WARP = 32
MOSTLY = 0.9  # of the elements that a thread reads: this share is copied where it loads them for others
WILD = np.uint64(0x7F800000)  # these bits are set in a float that is NaN or infinite
MOST_HOPS = 24  # 2 to this power copies of copies
NARROW = (torch.float16, torch.bfloat16)  # what a case's float32 inputs may be given as


@dataclass
class Sources:
    """Inputs and output among the memories of a trace.

    Attributes:
        names: of the inputs that were found.
        memory_of: for each of them its memory.
        first: for each of them the number of its first element; elements are numbered through all inputs.
        count: how many elements they have together.
        of_read: for each access that reads, the element that it delivers; -1 if it is none of an input.
        made_by: for each access that reads what a thread computed, the write that left it; -1 for what is an input's or
            a plain 0, which carries nothing.
        copied_from: for each write the read whose number it passes on; -1 if it was computed.
        unknown: whether there is an array that held something before the call and is none of the inputs: then what it
            brings cannot be told, such as an input that was transposed on its way.
        outputs: the memories that the output was made of, each with where in the output it begins.
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
    """Where the reads of a trace come from.

    Args:
        trace: of the call.
        inputs: what the case gave it.
        out: what it returned.
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
    origin = _origins(trace, copied_from)  # of what a write holds: the write that first held it
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
    """Which accesses hold a number that may have been computed: a 0 only if its line stores other numbers as well that
    are no copies, and if who stores it reads clearly more of the inputs than it stores in shared memory: else it fills
    a tile up."""
    of_numbers = np.unique(trace.lines[trace.is_write & (trace.value != 0) & (copied_from < 0)])
    _, group = np.unique(_who(trace), return_inverse=True)
    direct, count = ~trace.is_write & (begin >= 0), int(group.max(initial=-1)) + 1
    elements = int(begin.max(initial=0)) + 1
    read = np.bincount(np.unique(group[direct] * elements + begin[direct]) // elements, minlength=count)
    reduces = np.bincount(group[trace.is_write & trace.shared], minlength=count) < MOSTLY * read
    return (trace.value != 0) | (trace.is_write & np.isin(trace.lines, of_numbers) & reduces[group])


def _may_be_chosen(trace: Trace, copied_from: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Which copies of an input's element may be the largest, or another choice, of several: those by threads that read
    clearly more of its elements than they copy; where lanes exchange numbers, by warps."""
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
    """A number for the thread of each access, or for its warp where lanes exchange numbers."""
    return trace.actors(np.where(trace.exchanging()[trace.launch], WARP, 1))


def _is(memory: Memory, x: Tensor) -> bool:
    """Whether a memory held an input at first."""
    array = memory.array
    if array.name and x.is_floating_point() and memory.unit == 2:
        return any(_same(memory.array.initial, x.to(dtype)) for dtype in NARROW)
    return _same(memory.array.initial, x)


def _is_of_whole_numbers(memory: Memory) -> bool:
    """Whether a memory is of small whole numbers, such as counts, or shared: it brings no element of an input."""
    if memory.initial is None:
        return True
    bits = memory.initial.astype(np.uint32).view(np.int32) if memory.unit == 4 else memory.initial.astype(np.int64)
    return memory.unit >= 4 and bool((np.abs(bits.astype(np.int64)) < LEAST_FLOAT).all())


def _same(data: bytes, x: Tensor) -> bool:
    return x.numel() > 0 and len(data) == x.nbytes and data == x.contiguous().view(torch.uint8).numpy().tobytes()


def _copies(trace: Trace) -> np.ndarray:
    """For each write the last read of the same thread before it that got the very number; -1 for none, and for 0."""
    who = trace.actors()
    order = np.lexsort((trace.value, who))  # stable: by thread, by number, then in time
    is_read = ~trace.is_write[order]
    last = np.maximum.accumulate(np.where(is_read, np.arange(order.size), -1))
    same = (last >= 0) & (who[order[last]] == who[order]) & (trace.value[order[last]] == trace.value[order])
    found = np.full(order.size, -1, dtype=np.int64)
    found[order] = np.where(same & ~is_read & (trace.value[order] != 0), order[last], -1)
    of_float = np.array([one.unit == 4 for one in trace.memories])[trace.memory]
    found[of_float & (trace.value & WILD == WILD)] = -1
    # the threads that store at a line, and those of them that copy there
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
    """The copies without those from shared memory of what is no element of an input: a sum that another addend has not
    changed, so small is it, is no copy of the larger one."""
    origin = _origins(trace, copied_from)
    source = copied_from[origin]
    of_input = (source >= 0) & (base[trace.memory[source]] >= 0)
    return np.where((copied_from >= 0) & trace.shared[copied_from] & ~of_input, -1, copied_from)


def _origins(trace: Trace, copied_from: np.ndarray) -> np.ndarray:
    """For each write the first one in its chain of copies; itself if it is none."""
    every = np.arange(trace.value.size)
    before = np.where(copied_from >= 0, trace.seen[copied_from], -1)
    before = np.where(before >= 0, before, every)
    for _ in range(MOST_HOPS):
        before = before[before]
    return before


def _outputs(trace: Trace, out: Tensor) -> list[tuple[int, int]]:
    """The memories whose last state is the output, or a piece of it: that of a call that returns several together."""
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
        last[trace.element[mine]] = trace.value[mine]  # the last one stays
        known = np.unique(trace.element[mine]) if memory.initial is None else np.arange(size)
        for start in range(0, wanted.size - size + 1, size):
            if bool((last[known] == wanted[start + known]).all()) and all(start != at for _, at in found):
                found.append((number, start))
                break
    # where all is NaN, or 0, a smaller array may equal a piece of it
    whole = [one for one in found if trace.memories[one[0]].array.bytes == data.nbytes]
    pieces = found if sum(trace.memories[one].array.bytes for one, _ in found) == data.nbytes else []
    return whole[-1:] or pieces

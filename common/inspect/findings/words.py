"""A finding in words: what happened, what it means and how to mend it.

element_of(finding)     "tile[3][17]"
happened(finding)       "race in softmax_kernel: partial[0] (shared memory)"
explained(finding)      "The order of the read and the write is undefined. Put a __syncthreads() between ..."
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

from common.console.paths import shown_path
from common.console.words import counted
from common.inspect.findings.model import Access, Finding
from common.inspect.origins import deciding, loop_waits, piece_of
from common.inspect.source_lines import Place
from common.source.reader import code_of, line_of, read

NO_GUARD = "The last block has spare threads, and none of them returns:"
OR_THE_ORDER = "If the two are in the wrong order, swap them."
WARP = 32
MOST_THREADS = 1024  # of a block
MOST_ROWS = 128  # of a tile that is usual
_TILED = re.compile(r"\b(?:threadIdx|blockIdx|blockDim)\.y\b|\b__shared__\b|[Tt]ile|TILE")  # no thread per element
_ASKS = re.compile(r"[\s}]*(?:else\s+)?if\s*\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)(.*)")
_RETURNS = re.compile(r"if\s*\([^;{}]*\)\s*\{?\s*return\s*;")
_NO_MEMORY = ("accumulator", "mbarrier_fence", "registers_fence", "transaction_count")
_SPINS = re.compile(r"(?<!\w)while\s*\([^;{}]*\)\s*(?:;|\{\s*\})")
_WITHOUT_FENCE = (
    "This kernel waits in a loop until another thread sets a flag, and what is written before the flag is not ordered: "
    "put a __threadfence() (within a block, __threadfence_block()) between the write and the flag, and another after "
    "the loop. The flag itself must be volatile or, better, atomic. No barrier belongs in such a loop."
)
FAR = 1 << 24  # bytes outside a tensor, from which on an index is probably not just a little too large
TITLES = {
    "race": "race",
    "async_race": "race with an asynchronous copy",
    "out_of_bounds": "out of bounds",
    "misaligned": "misaligned address",
    "uninitialized": "uninitialized memory",
    "use_after_free": "use after free",
    "host_access": "host code uses device memory",
    "double_free": "cudaFree called twice",
    "leak": "memory leak",
    "barrier": "barrier not reached by all",
    "same_value": "equal values written by several threads",
    "stale_read": "plain read before an atomicCAS",
    "volatile_flag": "volatile flag",
    "copy_not_awaited": "copy not waited for",
    "overwritten_operand": "overwritten while it is being read",
    "accumulator": "accumulator touched before the wait",
    "proxy_fence": "missing proxy fence",
    "mbarrier_fence": "mbarrier not yet visible to TMA",
    "registers_fence": "missing wgmma.fence",
    "wrong_layout": "tile and descriptor do not match",
    "copy_at_end": "copy under way when the block ends",
    "transaction_count": "wrong transaction count",
    "absent_lane": "shuffle from a lane that takes no part",
    "not_stored": "never stored",
    "needlessly_stored": "overwritten",
    "not_read": "input not used",
    "not_needed": "NaN or infinity read",
    "other_element": "wrong element",
    "stored_elsewhere": "another element's value",
    "wrong_result": "wrong intermediate result",
    "wrong_value": "wrong number",
    "error": "error",
}


# ---- names


def plain(text: str) -> str:
    """The text with its paths shortened."""
    return re.sub(r"/[^\s:]+(?=:\d)", lambda match: shown_path(Path(match[0])), text)


def is_named(finding: Finding) -> bool:
    """Whether the variable has a name of its own, and not a description such as "the 64 bytes of cudaMalloc at ..."."""
    return bool(finding.variable) and " " not in finding.variable


def index_of(finding: Finding) -> tuple[int, ...]:
    """The index of the element where the access begins. The first one leaves its range if the access is outside."""
    rest, index = (finding.byte_offset or 0) // finding.element_bytes, []
    for size in reversed(finding.shape[1:]):
        rest, position = divmod(rest, size)
        index.append(position)
    return (rest, *reversed(index)) if finding.shape else ()


def element_of(finding: Finding) -> str:
    """ "tile[3][17]" in shared memory, "value[0, 1, 37, 5]" for a tensor, or the best that is known."""
    if not is_named(finding):
        where = plain(finding.variable) or f"{finding.space} memory"
        known = finding.byte_offset is not None and finding.variable
        return f"byte {finding.byte_offset} of {where}" if known else where
    index = index_of(finding) if finding.byte_offset is not None else ()
    if finding.space == "shared":
        return finding.variable + "".join(f"[{i}]" for i in index)
    return finding.variable + (f"[{', '.join(map(str, index))}]" if index else "")


def _declared(finding: Finding) -> str:
    """ "tile[32][33]" or "value, shape [2, 3, 40, 16]": the whole variable."""
    if not finding.shape:
        return plain(finding.variable)
    if finding.space == "shared":
        return finding.variable + "".join(f"[{size}]" for size in finding.shape)
    return f"{finding.variable}, shape [{', '.join(map(str, finding.shape))}]"


# ---- what happened


def happened(finding: Finding) -> str:
    """One line: the kind, the kernel and the memory."""
    where = f" in {finding.kernel}" if finding.kernel else ""
    what = f"{TITLES.get(finding.kind, finding.kind)}{where}"
    if finding.kind == "double_free" and _is_on_heap(finding):
        what = "freed twice"
    if finding.kind in ("leak", "double_free"):
        return f"{what}: {plain(finding.variable) or finding.detail}"
    if finding.kind in ("barrier", "error", "absent_lane") or (not finding.variable and finding.kind in _NO_MEMORY):
        return what
    return f"{what}: {element_of(finding)}" + (f" ({finding.space} memory)" if finding.variable else "")


# ---- what it means and how to mend it


def explained(finding: Finding) -> str:
    """One to three sentences for the student."""
    explain = {
        "race": _race,
        "async_race": _async_race,
        "out_of_bounds": _out_of_bounds,
        "misaligned": _misaligned,
        "uninitialized": _uninitialized,
    }.get(finding.kind)
    if explain:
        return explain(finding)
    detail = plain(finding.detail)
    return {
        "use_after_free": f"This memory was {detail}. Free it after the last "
        f"{'use' if _is_on_heap(finding) else 'kernel that uses it'}.",
        "host_access": "In the simulator both are the same memory. On a machine with a GPU the host cannot read or "
        "write it: the process ends here with a segmentation fault. Let a kernel do it, or cudaMemcpy what the host "
        "needs.",
        "double_free": f"The second {'free' if _is_on_heap(finding) else 'cudaFree'} of the same memory: {detail}. "
        "Free each allocation once.",
        "leak": f"{finding.count:,} of these were never freed. The device heap lives as long as the program: call free "
        "or delete for what new gave, in a kernel."
        if _is_on_heap(finding)
        else "It is never freed: call cudaFree when the last kernel that uses it has been launched.",
        "barrier": f"Not all threads of the block come to this barrier{f': {detail}' if detail else ''}. GPUs since "
        "Volta do not wait for those that have returned, which CUDA does not promise. Take the barrier out of the "
        "condition or loop that only some of them run through, and let no thread return before it.",
        "same_value": "They write without an order, but whenever it was seen the value stayed what it was: on a GPU "
        "the result is the same. To the C++ memory model it is a race: let one thread write, or use atomicExch.",
        "stale_read": "Another thread may change the value in between; then the atomicCAS that follows fails and "
        "brings the new one, so the result is right. To the C++ memory model it is still a race.",
        "volatile_flag": "One thread sets the flag after a fence and another waits for it: every GPU orders that, and "
        "what was written before the fence. The C++ memory model promises it for atomics only: cuda::atomic_ref, or "
        "atomicExch to set it and atomicAdd(&flag, 0) to read it.",
        "absent_lane": f"In a shuffle {detail}: what arrives is undefined, and zero on today's GPUs where the lane has "
        "returned. Let all lanes of the warp come to the shuffle: guard the value, not the code.",
        **_asynchronous(finding, detail),
    }.get(finding.kind, detail)


def _is_on_heap(finding: Finding) -> bool:
    """Whether the memory comes from malloc() or new in a kernel."""
    return "of malloc or new" in finding.variable


def _asynchronous(finding: Finding, detail: str) -> dict[str, str]:
    """Copies and products of compute capability 9.0."""
    earlier = finding.in_order[0].line if finding.accesses else "an unknown line"
    what = {"load": "No thread has waited for it", "store": "It may still be reading shared memory"}.get(detail, "")
    return {
        "copy_not_awaited": f"The copy issued in {earlier} may still be under way: this thread has not seen the "
        "phase of its mbarrier complete. Wait for that phase first; is the parity the right one, and does the phase "
        "expect all bytes?",
        "overwritten_operand": f"What was started in {earlier} may still be reading this memory. Before it is written "
        "again, the thread that started it must wait (wgmma.wait_group, or cp.async.bulk.wait_group.read) and then "
        "signal this thread through a barrier.",
        "accumulator": f"The wgmma issued in {earlier} may write this register at any time: until wgmma.wait_group "
        "covers its group, no thread may read or write it. The simulator keeps it NaN until then.",
        "proxy_fence": f"What ordinary stores wrote in {earlier} is visible to tensor cores and TMA only after the "
        "writing thread's fence.proxy.async, before the barrier. Without it they may read what was there before.",
        "mbarrier_fence": f"TMA may not see this mbarrier as initialized yet ({detail}): after mbarrier.init the same "
        "thread needs fence.mbarrier_init.release.cluster or fence.proxy.async, and a barrier must follow.",
        "registers_fence": "Other instructions have changed the accumulators since the latest wait: a wgmma.fence must "
        "come before the next wgmma that adds to them.",
        "wrong_layout": f"{detail[:1].upper()}{detail[1:]}. Both must describe the same bytes: the swizzle, the "
        "distances from 8 rows to the next, and which dimension is k.",
        "copy_at_end": f"{what} when the block ends, and its shared memory goes to another block. Wait before the last "
        "thread returns.",
        "transaction_count": f"When the block ends, {detail}: what mbarrier.expect_tx announces must be what the "
        "copies bring, elements outside of the tensor included.",
    }


def _race(finding: Finding) -> str:
    if len(finding.accesses) < 2:
        return "Two threads use the same memory, at least one of them writes, and there is no barrier between them."
    first, second = finding.in_order
    if {first.action, second.action} != {"write"} and _SPINS.search(_body_of(finding)):
        return _WITHOUT_FENCE
    if first.block != second.block:
        return _race_of_blocks(first, second)
    actions = {first.action, second.action}
    if "atomic" in actions:
        return (
            "An atomic operation is safe against other atomic operations only. Make both accesses atomic, or separate "
            f"them: {_where_to_wait(first, second)}"
        )
    if actions == {"write"} and first.place == second.place:
        return (
            f"Several threads write this element in {first.line}, and which value remains is undefined. Check the "
            "index, so that each thread has elements of its own; or let one thread write; or add with atomicAdd."
        )
    if actions == {"write"}:
        return (
            f"Which of the two values remains is undefined. {first.line.capitalize()} and {second.line} should write "
            "different elements: check both indices, and which threads come to each line. Only if both are meant to "
            "write this element must the later write wait for the earlier one."
        )
    if "async copy" in actions:
        return (
            "cp_async_wait<N>() waits only for the copies that the thread started itself; the others' may not have "
            "arrived. Put a __syncthreads() after the wait: then all threads have waited."
        )
    chance = "The order of the read and the write is undefined."
    if pieces := pieces_of(finding):
        return (
            f"{chance} They are parts of {finding.variable}: {first.line} goes through {pieces[0]}, {second.line} "
            f"through {pieces[1]}. Where the two should not overlap, an index is wrong and leaves its part. Where they "
            f"do: {_where_to_wait(first, second)}"
        )
    if within_a_turn(finding):
        return (
            f"{chance} Both happen in {first.line}, in a loop with a barrier: within one iteration a thread reads "
            "what another one writes. If it should not read that element, the index is wrong. If it should: read, "
            "__syncthreads(), write."
        )
    return f"{chance} {_where_to_wait(first, second)}"


def pieces_of(finding: Finding) -> tuple[str, str] | None:
    """Of a race in one array the two pointers into different parts of it by which it is accessed."""
    if finding.space != "shared" or len(finding.accesses) < 2 or not is_named(finding):
        return None
    places = [access.place for access in finding.in_order]
    names = [piece_of(place, finding.variable) if place else "" for place in places]
    return (names[0], names[1]) if all(names) and names[0] != names[1] else None


def within_a_turn(finding: Finding) -> bool:
    """Whether a race is between a read and a write of one line, in a loop that has a barrier."""
    places = {access.place for access in finding.accesses}
    place, warps = next(iter(places)), {one.thread[0] // WARP for one in finding.accesses if one.thread}
    flat = all(one.thread and one.thread[1:] == (0, 0) for one in finding.accesses)
    return len(places) == 1 and place is not None and loop_waits(place, flat and len(warps) == 1)


def _where_to_wait(first: Access, second: Access) -> str:
    """Where a barrier is missing, in lines of a function that both accesses are made from.

    Which of two lines runs first does not tell: threads are at different places. But where a barrier stands between the
    two in the text, the one that is missing must be on the way back.
    """
    lines = _lines_in_common(first.place, second.place)
    if lines is None:
        return "Put a __syncthreads() between the two."
    (upper, lower), file = sorted(lines), first.place.file
    source = read(file)
    around = source.heads(lower) if source else []
    if upper == lower and not _may_repeat(first.place):
        return (
            f"Both happen in line {upper}, and no loop of the kernel is around it: threads read there what others "
            "write in the same step. Read, __syncthreads(), write; or, where blocks meet, write to another array."
        )
    if upper == lower:
        return (
            f"Both happen in line {upper}: put a __syncthreads() between one iteration of the loop and the "
            "next. If a single iteration reads what another thread writes in it: read, __syncthreads(), write."
        )
    between = {line: Place(file, line).text.split("//")[0] for line in range(upper + 1, lower)}
    barriers = {line: text for line, text in between.items() if "__sync" in text}
    if doubtful := [line for line in barriers if source and not source.is_compiled_with(line, (upper, lower))]:
        return (
            f"The barrier in line {doubtful[0]} is inside an #if. If that leaves it out, it is what is missing; if "
            f"not, put a __syncthreads() after line {lower}."
        )
    if barriers and all(re.search(r"(?<!\w)(?:if|else|while)(?!\w).*__sync", text) for text in barriers.values()):
        return (
            f"The barrier between lines {upper} and {lower} is behind a condition, and these threads went past it: "
            "take it out of the condition, or put a __syncthreads() there that all threads come to."
        )
    warps = {one.thread[0] // WARP for one in (first, second) if one.thread and one.thread[1:] == (0, 0)}
    if barriers and len(warps) > 1 and all("__syncwarp" in text for text in barriers.values()):
        return (
            f"The __syncwarp() between lines {upper} and {lower} waits for one warp, and these threads are in two: put "
            "a __syncthreads() there."
        )
    if barriers:
        return (
            f"There is a barrier between lines {upper} and {lower}, but none on the way back to line {upper}: "
            f"put a __syncthreads() after line {lower}."
        )
    neighbors = not any(text.strip() for text in between.values())
    order = f" {OR_THE_ORDER}" if neighbors else ""
    holding = [line_of(one) for one in around if one.type == "if_statement" and one.end_point.row + 1 >= lower]
    if inside := [line for line in holding if line < upper and "constexpr" not in Place(file, line).text]:
        order += f" Both are inside the if of line {inside[0]}: all threads of the block must come to the barrier."
    return f"Put a __syncthreads() between line {upper} and line {lower}.{order}"


def _may_repeat(place: Place) -> bool:
    """Whether a loop of the kernel is around a place, as far as can be told."""
    source = read(place.file)
    for one in (place, *place.callers) if source else ():
        if any(head.type != "if_statement" for head in source.heads(one.line)):
            return True
        around = source.function_at(one.line)
        if around and around.is_kernel:
            return False
    return True


def _lines_in_common(first: Place | None, second: Place | None) -> tuple[int, int] | None:
    """The two lines in the innermost function that both places are in or were inlined into; None if there is none."""
    if not first or not second or first.file != second.file:
        return None
    chains = [[*reversed(place.callers), place] for place in (first, second)]  # from the kernel inwards
    if chains[0][0].function != chains[1][0].function:
        return None
    for one, other in zip(*chains, strict=False):
        if one.line != other.line:
            break
    return one.line, other.line


def _race_of_blocks(first: Access, second: Access) -> str:
    why = "The blocks of a launch run in any order, and __syncthreads() does not reach beyond a block."
    if first.action == second.action == "write":
        return (
            f"{why} Check how blockIdx enters the index: each block should write elements of its own. Or use atomicAdd."
        )
    return (
        f"{why} Put the second step into a kernel of its own: it starts when the first has finished. Or let each block "
        "read only what it wrote itself."
    )


def _async_race(finding: Finding) -> str:
    earlier = finding.in_order[0]
    started = f"The asynchronous copy started in {earlier.line} may still be under way."
    if finding.accesses[0].action == "read":
        return (
            f"{started} Between the copy and this read there must be cp_async_commit(), a cp_async_wait<N>() that "
            "covers its group, and then a __syncthreads(): each thread waits for its own copies only."
        )
    return f"{started} Before this place is written again there must be a cp_async_wait<N>(), then a __syncthreads()."


def _out_of_bounds(finding: Finding) -> str:
    access = finding.accesses[0] if finding.accesses else Access("read", 0, None)
    size = math.prod(finding.shape) * finding.element_bytes if finding.shape else None
    offset = finding.byte_offset
    if size is None and offset is not None and (given := re.match(r"the (\d+) bytes of ", finding.variable)):
        advice = "Allocate more, or check the index."
        past = (offset - int(given[1])) // access.bytes + 1
        if past > 0 and not _is_on_heap(finding):
            advice = _guard_or_index(replace(finding, shape=(int(given[1]) // access.bytes,)), past)
        return f"The access leaves {plain(finding.variable)}. {advice}"
    if size is None or offset is None:
        known = f" {plain(finding.detail)}." if finding.detail else ""
        return (
            f"The address belongs to no array of this kernel.{known} Check the index and the condition that guards it."
        )
    elements = size // finding.element_bytes
    if offset < 0:
        before = -(offset // finding.element_bytes)
        where = f"{counted(before, 'element')} before its start"
        advice = "An index is negative: look at what is subtracted."
    elif offset < size:
        where = f"the last {offset + access.bytes - size} of the {access.bytes} bytes are past its end"
        advice = "A vector access needs all its elements inside: take single elements at a ragged end."
    else:
        past = (offset - size) // finding.element_bytes + 1
        where = "the first element past its end" if past == 1 else f"{past:,} elements past its end"
        advice = (
            "The array is too small, or the index runs too far."
            if finding.space == "shared"
            else _guard_or_index(finding, past)
        )
    if offset < -FAR or offset > size + FAR:
        advice = "So far outside, the index itself is wrong: not set, or a product that overflowed 32 bits."
    return f"{_declared(finding)}, has {counted(elements, 'element')}; this is {where}. {advice}"


def _guard_or_index(finding: Finding, past: int) -> str:
    """What to do about an index that lies `past` elements behind the end of a tensor, the first of them being 1.

    What sticks out of the tensor is not far outside, and needs a guard; a wrong index may lie anywhere.
    """
    row = finding.shape[-1]
    wrong = f"the index is wrong: a row length (a row has {row}), an offset, or sizes that were swapped in a call"
    body = _body_of(finding)
    if conditions := _conditions(finding):
        return f"The access runs where `{conditions[0]}` holds: that bound is wrong, or {wrong}."
    if body and not _TILED.search(body):
        guard = _RETURNS.search(body)
        if guard and past > MOST_THREADS:
            return f"A thread that computes one element is never this far outside: {wrong}."
        if guard:
            return f"Threads without an element return at `{guard[0]}`: that bound is wrong, or {wrong}."
        if past <= MOST_THREADS:
            return f"{NO_GUARD} if (index >= n) return; with n the number of elements."
        return f"No guard helps this far outside: {wrong}."
    if past > MOST_ROWS * row:
        return f"No tile extends that far past the end ({past // row:,} rows): {wrong}."
    return (
        f"If a tile or a row extends past the tensor, guard the access (row < rows && col < cols). Otherwise {wrong}."
    )


def _conditions(finding: Finding) -> list[str]:
    """The bounds that the `if`s around an access ask for, the nearest first; not those of loops, or of what leaves."""
    place = finding.accesses[0].place if finding.accesses else None
    heads = (one.text for one in deciding(place)) if place else ()
    found = (_ASKS.match(text) for text in heads)
    leaves = re.compile(r"\s*\{?\s*(?:return|continue|break)\b")
    return [match[1] for match in found if match and re.search("[<>]", match[1]) and not leaves.match(match[2])]


def _body_of(finding: Finding) -> str:
    """The text of the kernel, without comments; "" if it is not known, or an #if may leave out what counts."""
    file = next((access.place.file for access in finding.accesses if access.place), "")
    source = read(file)
    function = source.function(finding.kernel_name) if source else None
    if function is None:
        return ""
    here = [access.place.line for access in finding.accesses if access.place]
    every = range(function.line, function.last + 1)
    doubtful = " ".join(source.lines[line - 1] for line in every if not source.is_compiled_with(line, here))
    return "" if any(one.search(doubtful) for one in (_SPINS, _RETURNS, _TILED)) else code_of(function.body)


def _misaligned(finding: Finding) -> str:
    bytes_ = finding.accesses[0].bytes if finding.accesses else finding.element_bytes
    vector = {8: " (float2, double)", 16: " (float4)"}.get(bytes_, "")
    elements = f" ({bytes_ // finding.element_bytes} elements)" if bytes_ > finding.element_bytes > 1 else ""
    return (
        f"An access of {bytes_} bytes{vector} needs an address that is a multiple of {bytes_} bytes{elements}. Make "
        "the row length such a multiple (pad shared arrays), or take single elements where it is not."
    )


def _uninitialized(finding: Finding) -> str:
    verb = "updated atomically" if finding.accesses and finding.accesses[0].action == "atomic" else "read"
    if finding.space == "shared":
        return (
            f"It is {verb}, but no thread of this block has written it: shared memory holds what an earlier block "
            "left. Fill the whole array (with 0 where a ragged tile ends or a sum does, with -INFINITY for a maximum), "
            "and put a __syncthreads() between filling and reading."
        )
    why = "cudaMalloc does not clear memory" if "cudaMalloc" in finding.variable else "a new tensor is not cleared"
    why = "malloc and new do not clear memory" if _is_on_heap(finding) else why
    return f"It is {verb} before any kernel has written it: {why}. Write the first value with =, not +=, or clear it."

"""A finding in words: what happened, what it means and how to fix it.

element_of(finding)     "tile[3][17]"
happened(finding)       "race in softmax_kernel: partial[0] (shared memory)"
explained(finding)      "The order of the read and the write is undefined. Put a __syncthreads() between ..."
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from common.console.paths import shown_path
from common.console.words import Sentences, counted
from common.inspect.findings.model import EDIT, VOTE, Access, Finding
from common.inspect.origins import deciding, loop_waits, piece_of
from common.inspect.source_lines import Place
from common.source.reader import code_of, line_of, read

NO_GUARD = "The last block has spare threads, and none of them returns:"
OR_THE_ORDER = "If they should happen in the other order, swap those lines."
WARP = 32
MOST_THREADS = 1024  # per block
MOST_ROWS = 128  # in a common tile
_TILED = re.compile(r"\b(?:threadIdx|blockIdx|blockDim)\.y\b|\b__shared__\b|[Tt]ile|TILE")  # not one thread per element
_ASKS = re.compile(r"[\s}]*(?:else\s+)?if\s*\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)(.*)")
_RETURNS = re.compile(r"if\s*\([^;{}]*\)\s*\{?\s*return\s*;")
_NO_MEMORY = ("accumulator", "mbarrier_fence", "registers_fence", "transaction_count")
_SPINS = re.compile(r"(?<!\w)while\s*\([^;{}]*\)\s*(?:;|\{\s*\})")
FAR = 1 << 24  # bytes out of bounds beyond which an index is probably not just slightly too large
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
    "absent_vote": "vote of a warp after lanes have returned",
    "single_edit": "found by trial: one edit makes the failing cases pass",
}


says = Sentences(__file__)


# ---- names


def plain(text: str) -> str:
    """The text with paths shortened."""
    return re.sub(r"/[^\s:]+(?=:\d)", lambda match: shown_path(Path(match[0])), text)


def is_named(finding: Finding) -> bool:
    """Whether the variable has a real name, not a description such as "the 64 bytes of cudaMalloc at ..."."""
    return bool(finding.variable) and " " not in finding.variable


def index_of(finding: Finding) -> tuple[int, ...]:
    """The index of the element where the access begins; its first component is out of range if the access is."""
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
    """The whole variable: "tile[32][33]" or "value, shape [2, 3, 40, 16]"."""
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
    without = not finding.variable and finding.kind in _NO_MEMORY
    if without or finding.kind in ("barrier", "absent_lane", EDIT, VOTE):
        return what
    return f"{what}: {element_of(finding)}" + (f" ({finding.space} memory)" if finding.variable else "")


# ---- what it means and how to fix it


def explained(finding: Finding, others: Sequence[Finding] = ()) -> str:
    """One to three sentences for the student; `others` have the same cause."""
    explain = {
        "race": partial(_race, others=others),
        "async_race": _async_race,
        "out_of_bounds": _out_of_bounds,
        "misaligned": _misaligned,
        "uninitialized": _uninitialized,
    }.get(finding.kind)
    if explain:
        return explain(finding)
    detail, on_heap = plain(finding.detail), _is_on_heap(finding)
    key = "leak_on_the_heap" if finding.kind == "leak" and on_heap else finding.kind
    what = {"load": "No thread has waited for it", "store": "It may still be reading shared memory"}
    return says(
        key,
        detail,
        detail=detail,
        Detail=detail[:1].upper() + detail[1:],
        colon_detail=f": {detail}" if detail else "",
        count=finding.count,
        earlier=finding.in_order[0].line if finding.accesses else "an unknown line",
        free="free" if on_heap else "cudaFree",
        use="use" if on_heap else "kernel that uses it",
        what=what.get(detail, ""),
    )


def _is_on_heap(finding: Finding) -> bool:
    """Whether the memory comes from malloc() or new in a kernel."""
    return "of malloc or new" in finding.variable


def _race(finding: Finding, others: Sequence[Finding]) -> str:
    if len(finding.accesses) < 2:
        return says("race_unknown")
    first, second = finding.in_order
    actions = {first.action, second.action}
    lines = {"first": first.line, "First": first.line.capitalize(), "second": second.line}
    if actions != {"write"} and _SPINS.search(_body_of(finding)):
        return says("without_a_fence")
    if first.block != second.block:
        return says("race_of_blocks_storing" if actions == {"write"} else "race_of_blocks")
    if "atomic" in actions:
        return says("race_with_an_atomic", wait=_where_to_wait(first, second, others))
    if actions == {"write"}:
        return says("race_of_one_store" if first.place == second.place else "race_of_two_stores", **lines)
    if "async copy" in actions:
        return says("race_of_async_copies")
    wait = _where_to_wait(first, second, others)
    if pieces := pieces_of(finding):
        given = {"variable": finding.variable, "piece": pieces[0], "other": pieces[1], "wait": wait}
        return says("race_of_pieces", **lines, **given)
    own = "race_in_global_memory" if finding.space == "global" else "race"
    return says("race_within_an_iteration" if within_a_turn(finding) else own, **lines, wait=wait)


def pieces_of(finding: Finding) -> tuple[str, str] | None:
    """For a race in one array: the two pointers to different parts through which it is accessed."""
    if finding.space != "shared" or len(finding.accesses) < 2 or not is_named(finding):
        return None
    places = [access.place for access in finding.in_order]
    names = [piece_of(place, finding.variable) if place else "" for place in places]
    return (names[0], names[1]) if all(names) and names[0] != names[1] else None


def within_a_turn(finding: Finding) -> bool:
    """Whether a race is between a read and a write in one line, inside a loop with a barrier."""
    places = {access.place for access in finding.accesses}
    place, warps = next(iter(places)), {one.thread[0] // WARP for one in finding.accesses if one.thread}
    flat = all(one.thread and one.thread[1:] == (0, 0) for one in finding.accesses)
    return len(places) == 1 and place is not None and loop_waits(place, flat and len(warps) == 1)


def _where_to_wait(first: Access, second: Access, others: Sequence[Finding]) -> str:
    """Where a barrier is missing, in lines of a function that contains both accesses.

    The order of execution does not determine it, since threads are at different places. But if there is already a
    barrier between the two lines, the missing one must be on the loop's way back.
    """
    lines = _lines_in_common(first.place, second.place)
    if lines is None:
        return "Put a __syncthreads() between the two."
    (upper, lower), file = sorted(lines), first.place.file
    source = read(file)
    around = source.heads(lower) if source else []
    given = {"upper": upper, "lower": lower}
    if upper == lower:
        return says("wait_in_a_loop" if _may_repeat(first.place) else "wait_no_loop", **given)
    between = {line: Place(file, line).text.split("//")[0] for line in range(upper + 1, lower)}
    barriers = {line: text for line, text in between.items() if "__sync" in text}
    if doubtful := [line for line in barriers if source and not source.is_compiled_with(line, (upper, lower))]:
        return says("wait_in_an_if_directive", barrier=doubtful[0], **given)
    if barriers and all(re.search(r"(?<!\w)(?:if|else|while)(?!\w).*__sync", text) for text in barriers.values()):
        return says("wait_behind_a_condition", **given)
    warps = {one.thread[0] // WARP for one in (first, second) if one.thread and one.thread[1:] == (0, 0)}
    if barriers and len(warps) > 1 and all("__syncwarp" in text for text in barriers.values()):
        return says("wait_of_a_warp", **given)
    if barriers:
        return _wait_on_the_way_back(file, barriers, [(upper, lower), *_pairs(file, lower, others)], len(warps) > 1)
    told = says("wait_between", **given)
    if not any(text.strip() for text in between.values()):
        told += f" {OR_THE_ORDER}"
    holding = [line_of(one) for one in around if one.type == "if_statement" and one.end_point.row + 1 >= lower]
    inside = [line for line in holding if line < upper and "constexpr" not in Place(file, line).text]
    return told + (says("wait_inside_an_if", around=inside[0]) if inside else "")


def _pairs(file: str, line: int, others: Sequence[Finding]) -> Iterator[tuple[int, int]]:
    """The lines of these races in the function of a line, as _lines_in_common gives them, the upper first."""
    source = read(file)
    for one in (one for one in others if len(one.accesses) == 2 and source):
        lines = _lines_in_common(*(access.place for access in one.in_order))
        is_here = lines and one.in_order[0].place.file == file
        if is_here and source.function_at(lines[0]) == source.function_at(line):
            yield min(lines), max(lines)


def _wait_on_the_way_back(file: str, barriers: Collection[int], pairs: Sequence[tuple[int, int]], several: bool) -> str:
    """What to do where barriers order these pairs in one direction only; `several`: the threads are in two warps."""
    pairs = [(one, other) for one, other in pairs if any(one < line < other for line in barriers)]
    given = {"upper": min(one for one, _ in pairs), "lower": max(other for _, other in pairs)}
    source = read(file) if several else None
    loops = [one for one in (source.heads(given["lower"]) if source else ()) if one.type != "if_statement"]
    way = next(((line_of(one), one.end_point.row + 1) for one in loops if line_of(one) <= given["upper"]), (1, 0))
    lines = (line for line in range(way[0], way[1] + 1) if not given["upper"] <= line <= given["lower"])
    of_warp = [line for line in lines if "__syncwarp" in Place(file, line).text.split("//")[0]]
    key = "wait_on_the_way_back_of_a_warp" if of_warp else "wait_on_the_way_back"
    return says(key, **given, warp=(of_warp or [0])[0])


def _may_repeat(place: Place) -> bool:
    """Whether a loop of the kernel encloses a place, as far as can be told."""
    source = read(place.file)
    for one in (place, *place.callers) if source else ():
        if any(head.type != "if_statement" for head in source.heads(one.line)):
            return True
        around = source.function_at(one.line)
        if around and around.is_kernel:
            return False
    return True


def _lines_in_common(first: Place | None, second: Place | None) -> tuple[int, int] | None:
    """The two lines in the innermost function that contains both places, directly or inlined; None if there is none."""
    if not first or not second or first.file != second.file:
        return None
    chains = [[*reversed(place.callers), place] for place in (first, second)]  # outermost first
    if chains[0][0].function != chains[1][0].function:
        return None
    for one, other in zip(*chains, strict=False):
        if one.line != other.line:
            break
    return one.line, other.line


def _async_race(finding: Finding) -> str:
    key = "async_race_read" if finding.accesses[0].action == "read" else "async_race_write"
    return says(key, earlier=finding.in_order[0].line)


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
    comma = "" if finding.space == "shared" else ","
    return f"{_declared(finding)}{comma} has {counted(elements, 'element')}; this is {where}. {advice}"


def _guard_or_index(finding: Finding, past: int) -> str:
    """Advice on an index `past` elements past the end of a tensor (1: the first one).

    An excess thread or partial tile is only slightly out of bounds and needs a guard; a wrong index may be anywhere.
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
    """The bounds in the `if`s around an access, innermost first; not those of loops or of early exits."""
    place = finding.accesses[0].place if finding.accesses else None
    heads = (one.text for one in deciding(place)) if place else ()
    found = (_ASKS.match(text) for text in heads)
    leaves = re.compile(r"\s*\{?\s*(?:return|continue|break)\b")
    return [match[1] for match in found if match and re.search("[<>]", match[1]) and not leaves.match(match[2])]


def _body_of(finding: Finding) -> str:
    """The kernel's source without comments; "" if unknown or if an #if may exclude relevant code."""
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
    return says("misaligned", bytes=bytes_, vector=vector, elements=elements)


def _uninitialized(finding: Finding) -> str:
    verb = "updated atomically" if finding.accesses and finding.accesses[0].action == "atomic" else "read"
    if finding.space == "shared":
        return says("uninitialized_shared", verb=verb)
    why = "cudaMalloc does not clear memory" if "cudaMalloc" in finding.variable else "a new tensor is not cleared"
    why = "malloc and new do not clear memory" if _is_on_heap(finding) else why
    place = finding.accesses[0].place if finding.accesses else None
    adds = place and re.search(r"\]\s*[-+*/]=", place.text)
    repair = (
        "Write the first value with =, not +=, or clear it." if adds else "What it should hold must be written first."
    )
    return says("uninitialized", verb=verb, why=why, repair=repair)

"""Where the elements that a wrong output was made of are not those that it depends on: concluded(...) -> findings.

In this order, the first that holds; what is said is what was recorded:

    not_stored       elements of the output that nobody wrote
    other_element    what a thread wrote depends on one element, and it uses another one of the same input
    not_read         what a thread wrote depends on elements that neither it read nor a thread whose results it read
    stored_elsewhere what was written to an element is the right answer of another one
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from common.console.words import counted
from common.diagnosis.locating import wrong_mask
from common.inspect.findings.model import Access, Finding
from common.inspect.flow.needs import Needs
from common.inspect.flow.reached import bits_of, mask_of, reached, threads_of
from common.inspect.flow.slices_said import said
from common.inspect.flow.sources import Sources, sources_of
from common.inspect.flow.stages import CLOSE, WrongStage, first_wrong
from common.inspect.flow.trace import Trace
from common.inspect.replay.recording import Launch
from common.testing.case import Case

MOST_ACCESSES = 800_000
MOST_ELEMENTS = 8  # of a thread, among which one is looked for that shows it
MOST_THREADS = 8  # that are looked at
MOST = 0.75  # of the threads without a right output must show the same, where none is right
MATCHED = 0.9  # of the wrong elements must be others' right answers


@dataclass
class _Run:
    """All that is known of one call."""

    trace: Trace
    sources: Sources
    needs: Needs | None
    inputs: Mapping[str, Tensor]
    wrong: np.ndarray  # of the output's elements
    writer: np.ndarray  # of each element of the output the access that wrote it last, -1 if none did
    threads: np.ndarray  # whose each access is, see reached.py

    @functools.cached_property
    def _stored(self) -> np.ndarray:
        return np.flatnonzero(self.writer >= 0)

    @functools.cached_property
    def wrong_threads(self) -> list[int]:
        """Those that stored a wrong element."""
        return list(dict.fromkeys(self.threads[self.writer[self._stored[self.wrong[self._stored]]]].tolist()))

    @functools.cached_property
    def right(self) -> list[int]:
        """Those all of whose elements are right."""
        every = self.threads[self.writer[self._stored]].tolist()
        return [one for one in dict.fromkeys(every) if one not in set(self.wrong_threads)]

    def stored_by(self, thread: int) -> np.ndarray:
        """The elements of the output that a thread stored."""
        return self._stored[self.threads[self.writer[self._stored]] == thread]

    def wrong_of(self, thread: int) -> np.ndarray:
        """Those of them that are wrong."""
        elements = self.stored_by(thread)
        return elements[self.wrong[elements]]

    def accesses_of(self, thread: int) -> np.ndarray:
        return np.flatnonzero(self.threads == thread)

    @functools.cached_property
    def is_store(self) -> np.ndarray:
        """Which accesses write to the output."""
        return np.isin(self.trace.memory, [memory for memory, _ in self.sources.outputs]) & self.trace.is_write

    def slice_of(self, name: str) -> slice:
        first = self.sources.first[name]
        return slice(first, first + self.inputs[name].numel())

    def said(self, name: str, mask: np.ndarray) -> str:
        return said(name, tuple(self.inputs[name].shape), mask)

    def out_said(self, elements: np.ndarray) -> str:
        """These elements of the output in words; where it is made of several arrays those in that of the first."""
        memory, start = max((one for one in self.sources.outputs if one[1] <= elements[0]), key=lambda one: one[1])
        array = self.trace.memories[memory].array
        mask = np.zeros(array.bytes // array.element_bytes, dtype=bool)
        inside = elements - start
        mask[inside[(inside >= 0) & (inside < mask.size)]] = True
        return said(array.name or "the output", array.shape or (mask.size,), mask)


def concluded(
    case: Case, inputs: Mapping[str, Tensor], out: Tensor, ref: Tensor, bound: float, launches: Sequence[Launch]
) -> list[Finding]:
    """What does not fit, one finding at most; none where nothing can be said.

    Args:
        case: that ran.
        inputs: that it ran with, on the CPU.
        out, ref, bound: what came, what should have come, and how far apart they may be.
        launches: the recordings of the call, whole.
    """
    if sum(one.entry_of.size for one in launches) > MOST_ACCESSES or any(one.unshown for one in launches):
        return []
    trace = Trace.of(launches) if launches else None
    if trace is None or not trace.memories:
        return []
    sources = sources_of(trace, inputs, out)
    if not sources.names:
        return []
    if stage := first_wrong(trace, case, inputs):
        return [_of_stage(trace.up_to(stage.launch), sources, stage, inputs)]
    run = _run_of(trace, sources, inputs, case.reference, 0, out, ref, bound) if sources.outputs else None
    found = run and _first(run, out, ref, bound)
    return [found] if found else []


def _run_of(
    trace: Trace,
    sources: Sources,
    inputs: Mapping[str, Tensor],
    reference: Callable[..., Tensor],
    launch: int,
    out: Tensor,
    ref: Tensor,
    bound: float,
) -> _Run | None:
    """What is known of an output that is stored from this launch on; None if several threads add to one element."""
    if any(memory in trace.atomic for memory, _ in sources.outputs):
        return None
    wrong = wrong_mask(out.cpu(), ref.cpu(), bound).reshape(-1).numpy()
    writer = np.full(wrong.size, -1, dtype=np.int64)
    for memory, start in sources.outputs:
        stores = np.flatnonzero((trace.memory == memory) & trace.is_write & (trace.launch >= launch))
        writer[start + trace.element[stores]] = stores
    try:
        needs = Needs(reference, inputs)
    except RuntimeError:  # of whole numbers, or not written for derivatives
        needs = None
    return _Run(trace, sources, needs, inputs, wrong, writer, threads_of(trace))


def _first(run: _Run, out: Tensor, ref: Tensor, bound: float) -> Finding | None:
    found = _not_stored(run) or _needlessly_stored(run, ref)
    if not found and run.needs:
        found = _other_element(run) or _not_read(run)
    return found or _stored_elsewhere(run, out, ref, bound)


def _of_stage(trace: Trace, sources: Sources, stage: WrongStage, inputs: Mapping[str, Tensor]) -> Finding:
    """What went wrong in the first launch whose result is wrong."""
    array = trace.memories[stage.memory].array
    launch = trace.launches[stage.launch]
    held = f"held {stage.before}, all of it right" if stage.before else "had not been written"
    meant = f"is not {stage.meant} everywhere" if stage.meant else "is none of Q K^T, the masked scores and the weights"
    text = f"This is the first launch whose result is wrong: before it {array.name} {held}; behind it it {meant}."
    if stage.right is not None and stage.function is not None:
        bound = CLOSE * max(1.0, float(stage.right[torch.isfinite(stage.right)].abs().max()))
        cut = replace(
            sources,
            outputs=[(stage.memory, 0)],
            of_read=sources.of_read[: trace.launch.size],
            made_by=sources.made_by[: trace.launch.size],
            copied_from=sources.copied_from[: trace.launch.size],
        )
        sizes = stage.held, stage.right, bound
        run = _run_of(trace, cut, inputs, stage.function, stage.launch, *sizes)
        if run and (found := _first(run, *sizes)):
            return replace(found, detail=f"{text} {found.detail}")
    size = {"shape": array.shape, "element_bytes": array.element_bytes, "byte_offset": 0}
    return Finding("wrong_result", launch.kernel, launch.launch, variable=array.name, **size, detail=text)


def _access(run: _Run, access: int, action: str) -> Access:
    trace = run.trace
    launch = trace.launches[trace.launch[access]]
    entry = trace.entry_of(access)
    block = _coordinates(int(trace.block[access]), launch.grid)
    return Access(action, entry.bytes, entry.place, block, _coordinates(int(trace.thread[access]), launch.block))


def _coordinates(number: int, size: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, _ = size
    return number % x, number // x % y, number // (x * y)


def _finding(run: _Run, kind: str, access: int, action: str, detail: str, more: Sequence[Access] = ()) -> Finding:
    trace = run.trace
    launch = trace.launches[trace.launch[access]]
    memory = trace.memories[trace.memory[access]]
    return Finding(
        kind,
        launch.kernel,
        launch.launch,
        memory.array.space,
        memory.array.name,
        memory.array.shape,
        memory.array.element_bytes,
        int(trace.element[access]) * memory.unit,
        accesses=(_access(run, access, action), *more),
        detail=detail,
    )


# ---- not stored


def _not_stored(run: _Run) -> Finding | None:
    left = np.flatnonzero((run.writer < 0) & run.wrong)
    if not left.size:
        return None
    stores = run.writer[run.writer >= 0]
    stored = f"{left.size:,} of the {run.wrong.size:,} elements of the result are never stored, the first is "
    stored += f"{run.out_said(left[:1])}."
    if not stores.size:
        return None
    trace = run.trace
    every = np.flatnonzero(run.is_store)
    if every.size > stores.size:
        stored += f" {counted(every.size, 'store')} went to the other {stores.size:,}."
    last = int(stores[np.lexsort((trace.thread[stores], trace.block[stores], trace.launch[stores]))[-1]])
    detail = f"{stored} The access shown is that of the last thread that stores: its index, the loop or the condition "
    detail += "around it, or the launch leaves them out."
    return _finding(run, "not_stored", last, "write", detail)


def _needlessly_stored(run: _Run, ref: Tensor) -> Finding | None:
    """In an array that is changed in place: a store to an element that was right before."""
    kept = np.zeros(run.wrong.size, dtype=bool)
    of_memory = {run.sources.memory_of[name]: name for name in run.sources.names}
    for memory, start in run.sources.outputs:
        if memory in of_memory:
            before = run.inputs[of_memory[memory]].double().reshape(-1)
            kept[start : start + before.numel()] = before == ref.cpu().reshape(-1)[start : start + before.numel()]
    wrong = np.flatnonzero(run.wrong & kept & (run.writer >= 0))
    if not wrong.size:
        return None
    text = f"{run.out_said(wrong[:1])} must keep what it held before the call, and is overwritten here"
    text += f"; so it is with {wrong.size:,} elements." if wrong.size > 1 else "."
    return _finding(run, "stored_elsewhere", int(run.writer[wrong[0]]), "write", text)


# ---- not read


def _not_read(run: _Run) -> Finding | None:
    trace, sources = run.trace, run.sources
    reach = reached(trace, sources, run.threads)
    if reach is None:
        return None
    left = {one: _left_out(run, reach, one) for one in [*_spread(run.right), *_spread(run.wrong_threads)]}
    if any(left[thread] for thread in _spread(run.right)):
        return None  # something reaches them on a way that was not seen
    for thread in _spread(run.wrong_threads):
        if left[thread]:
            name = max(left[thread], key=lambda one: (one not in sources.first, left[thread][one].mean()))
            if found := _said_not_read(run, reach, thread, name, left[thread][name]):
                return found
    return None


def _left_out(run: _Run, reach: list[int], thread: int) -> dict[str, np.ndarray]:
    """For each input the elements that what a thread stores depends on and that do not reach it, if there are any."""
    here, found = mask_of(reach[thread], run.sources.count), {}
    for name, needed in run.needs.of(
        run.wrong_of(thread) if thread in run.wrong_threads else run.stored_by(thread)
    ).items():
        there = here[run.slice_of(name)] if name in run.sources.first else np.zeros(needed.numel(), dtype=bool)
        if (needed.numpy() & ~there).any():
            found[name] = needed.numpy() & ~there
    return found


def _said_not_read(run: _Run, reach: list[int], thread: int, name: str, missing: np.ndarray) -> Finding | None:
    trace, sources = run.trace, run.sources
    elements, needed = _which_depend(run, thread, name, ~missing)
    missing = missing & needed if (missing & needed).any() else missing
    text = f"{run.out_said(elements)} depends on {run.said(name, needed)}. "
    store = run.accesses_of(thread)[-1]
    if name not in sources.first:
        text += f"No thread of any launch reads {name} at all."
        launch = trace.launches[trace.launch[store]]
        return Finding("not_read", launch.kernel, launch.launch, **_element(run, name, missing), detail=text)
    here = run.slice_of(name)
    text += f"Nothing that reaches the thread that stores it was made of {run.said(name, missing)}."
    last, block = trace.launch[store], trace.block[store]
    in_block = (trace.launch == last) & (trace.block == block) & ~trace.is_write
    direct = np.array([not one.is_shared for one in trace.memories])[trace.memory]
    of_input = (sources.of_read >= here.start) & (sources.of_read < here.stop)
    own = np.flatnonzero(in_block & of_input & direct)
    lost_here = own[missing[sources.of_read[own] - here.start]]
    inside = np.flatnonzero((run.threads == thread) & of_input & ~direct)
    if lost_here.size and inside.size:  # somebody brought it, and this thread takes something else
        own = inside
    elif not own.size:  # it went through an intermediate result
        carried = np.flatnonzero(in_block & direct & (sources.made_by >= 0))
        lost = bits_of(np.concatenate([np.zeros(here.start, dtype=bool), missing]))
        held = any(reach[run.threads[write]] & lost for write in np.unique(sources.made_by[carried]).tolist())
        everywhere = np.flatnonzero(of_input & direct & ~trace.is_write)
        own = carried if held or not everywhere.size else everywhere
    if not own.size:
        return None
    mine = own[run.threads[own] == thread]
    read = np.zeros(missing.size, dtype=bool)
    read[sources.of_read[mine[of_input[mine]]] - here.start] = True
    if read.any() and not (read & needed).any():
        text += f" It reads {run.said(name, read)}."
    found = _finding(run, "not_read", int((mine if mine.size else own)[-1]), "read", text)
    return replace(found, space="global", **_element(run, name, missing))


def _element(run: _Run, name: str, missing: np.ndarray) -> dict[str, object]:
    """Of a Finding: the first element of an input that is missing."""
    x = run.inputs[name]
    first = int(np.flatnonzero(missing)[0])
    return {
        "variable": name,
        "shape": tuple(x.shape),
        "element_bytes": x.element_size(),
        "byte_offset": first * x.element_size(),
    }


# ---- another element


def _other_element(run: _Run) -> Finding | None:
    sources, threads, wrong, right = run.sources, run.threads, run.wrong_threads, run.right
    uses = _uses(run)
    needed_by = {one: run.needs.of(run.stored_by(one)) for one in [*_spread(wrong), *_spread(right)]}
    for name in sources.names:
        here = run.slice_of(name)
        mine = uses[(sources.of_read[uses] >= here.start) & (sources.of_read[uses] < here.stop)]
        pairs = _used_and_needed(run, mine, name, {one: needed_by[one] for one in _spread(right)})
        if any((used & ~needed).any() for used, needed in pairs.values()):
            continue  # its threads use this input for each other
        faulty = _used_and_needed(run, mine, name, {one: needed_by[one] for one in _spread(wrong)})
        bad = {one: both for one, both in faulty.items() if _is_another(*both)}
        if not pairs:
            bad = {one: both for one, both in bad.items() if _in_place_of(*both)}
            if len(bad) < MOST * len(faulty):
                continue
        if not bad:
            continue
        thread, (used, needed) = next(iter(bad.items()))
        other = used & ~needed
        access = int(mine[(threads[mine] == thread) & other[sources.of_read[mine] - here.start]][0])
        return _said_other(run, access, thread, name, used)
    return None


def _used_and_needed(
    run: _Run, uses: np.ndarray, name: str, needed_by: Mapping[int, Mapping[str, Tensor]]
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """For each of these threads that uses an input at all: what it uses of it, and what its results depend on."""
    here, found = run.slice_of(name), {}
    for thread, needed in needed_by.items():
        used = np.zeros(here.stop - here.start, dtype=bool)
        used[run.sources.of_read[uses[run.threads[uses] == thread]] - here.start] = True
        if used.any() and name in needed:
            found[thread] = used, needed[name].numpy()
    return found


def _is_another(used: np.ndarray, needed: np.ndarray) -> bool:
    """Whether something is used that is not needed, and something needed is not used."""
    return bool((used & ~needed).any() and (needed & ~used).any())


def _in_place_of(used: np.ndarray, needed: np.ndarray) -> bool:
    """Whether one set is there in place of the other: as large, or without an element in common."""
    return used.sum() == needed.sum() or not (used & needed).any()


def _said_other(run: _Run, access: int, thread: int, name: str, used: np.ndarray) -> Finding:
    elements, needed = _which_depend(run, thread, name, used)
    text = f"This thread stores {run.out_said(elements)}, which depends on {run.said(name, needed)}; "
    text += f"it uses {run.said(name, used)}."
    more = []
    source = int(run.trace.seen[access])
    if source >= 0:
        first = run.sources.of_read[access] - run.sources.first[name]
        one = np.zeros(used.size, dtype=bool)
        one[first] = True
        text += f" Here it takes {run.said(name, one)}, as it was put there by the store shown."
        more = [_access(run, source, "write")]
        origin = _first_read(run, source)
        if run.trace.entry_of(origin).place != run.trace.entry_of(source).place:
            more.append(_access(run, origin, "read"))
    return _finding(run, "other_element", access, "read", text, more)


def _first_read(run: _Run, store: int) -> int:
    """The read that brought what a store passes on."""
    read = int(run.sources.copied_from[store])
    while read >= 0 and (before := int(run.trace.seen[read])) >= 0 and run.sources.copied_from[before] >= 0:
        read = int(run.sources.copied_from[before])
    return read


def _which_depend(run: _Run, thread: int, name: str, there: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first wrong element of a thread that depends on what is not there of an input, and on what it depends."""
    wrong = run.wrong_of(thread)
    for element in wrong[:MOST_ELEMENTS]:
        needed = run.needs.of([element])[name].numpy()
        if (needed & ~there).any():
            return np.array([element]), needed
    return wrong, run.needs.of(wrong)[name].numpy()


def _spread(threads: list[int]) -> list[int]:
    """Some of them: the first ones, and others evenly."""
    step = max(1, len(threads) // (MOST_THREADS // 2))
    return list(dict.fromkeys([*threads[: MOST_THREADS // 2], *threads[::step]]))[:MOST_THREADS]


def _uses(run: _Run) -> np.ndarray:
    """The reads of input elements for the thread itself.

    Not those that it copies into memory to be read again, nor what a thread reads from the inputs that writes to shared
    memory as well: that may be for the others.
    """
    trace, sources = run.trace, run.sources
    passed_on = np.zeros(trace.value.size, dtype=bool)
    copies = np.flatnonzero((sources.copied_from >= 0) & ~run.is_store)
    passed_on[sources.copied_from[copies]] = True
    shared = np.array([one.is_shared for one in trace.memories])[trace.memory]
    shares = np.zeros(int(run.threads.max()) + 1, dtype=bool)
    shares[run.threads[shared & trace.is_write]] = True
    for_others = ~shared & shares[run.threads]
    return np.flatnonzero((sources.of_read >= 0) & ~passed_on & ~for_others)


# ---- stored elsewhere


def _stored_elsewhere(run: _Run, out: Tensor, ref: Tensor, bound: float) -> Finding | None:
    wrong = np.flatnonzero(run.wrong)
    got, right = out.cpu().double().reshape(-1), ref.cpu().reshape(-1)
    if not bool(torch.isfinite(got[wrong]).all()) or not bool(torch.isfinite(right).all()):
        return None
    order = torch.argsort(right)
    steps = right[order].diff()
    apart = 2 * bound + 1e-5 * float(right.abs().max())
    at = torch.searchsorted(right[order], got[wrong]).clamp(1, right.numel() - 1) if right.numel() > 1 else None
    if at is None:
        return None
    nearer = torch.where((right[order[at]] - got[wrong]).abs() < (right[order[at - 1]] - got[wrong]).abs(), at, at - 1)
    hit = (right[order[nearer]] - got[wrong]).abs() <= apart
    alone = torch.ones(right.numel(), dtype=torch.bool)
    alone[1:] &= steps > 2 * apart
    alone[:-1] &= steps > 2 * apart
    sure = hit & alone[nearer]
    if float(hit.double().mean()) < MATCHED or int(sure.sum()) < max(4, 0.5 * len(wrong)):
        return None
    first = int(sure.nonzero()[0])
    element, belongs = int(wrong[first]), int(order[nearer[first]])
    if run.writer[element] < 0:
        return None
    here, there = (run.out_said(np.array([one])) for one in (element, belongs))
    text = f"What is stored in {here} is the right answer of {there}; so it is with {int(sure.sum()):,} of the "
    text += f"{len(wrong):,} wrong elements. Either the index of the store is wrong, or what is read to compute it "
    text += "belongs to that other element."
    return _finding(run, "stored_elsewhere", int(run.writer[element]), "write", text)

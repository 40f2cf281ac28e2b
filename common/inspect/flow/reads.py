"""Reads of inputs that do not match what a result depends on.

other_element(run, case)     a thread uses an element instead of the one that its result depends on
not_read(run)                a dependency of a result cannot have reached the thread that stores it
not_needed(run, out, case)   infinity or NaN reaches a result that is NaN but does not depend on it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from common.inspect.findings.model import NOT_LAUNCHED, READS_OTHERS, Access, Finding
from common.inspect.flow.reached import SMALLEST, Needs, bits_of, mask_of, reached
from common.inspect.flow.run import Run, access_of, finding_of, spread, which_depend
from common.inspect.origins import launches_of, used_in
from common.inspect.own_lines import owned
from common.inspect.replay.recording import Launch
from common.inspect.source_lines import Place
from common.source.reader import Function, Source, arrays_in, line_of, read, walk
from common.testing.case import Case

ABOUT = 0.1  # relative difference allowed between the sizes of two sets
MOST = 0.75  # fraction of the wrong threads that must show the same if no thread is correct
MOST_LINES = 8  # student lines, if provided code does the reading
MOST_SILENT, STATEMENT_LINES = 4, 3


# ---- another element


def other_element(run: Run, case: Case) -> Finding | None:
    """The first thread with a wrong result that uses elements it does not need instead of those it needs.

    Only for inputs of which threads with correct results use nothing but what they need. If no thread is correct, one
    set must replace the other in most of them. Keys without weight may be used: tiles contain them, and the mask hides
    them later.
    """
    sources, wrong, right = run.sources, spread(run.wrong_threads), spread(run.right)
    without_weight = _without_weight(run, case)
    uses = _uses(run)
    needed_by = {one: run.needs.of(run.stored_by(one)) for one in [*wrong, *right]}
    of_input = [(name, uses[_of(run, name, uses)]) for name in sources.names]
    for name, mine in [*of_input, *((name, one) for name, every in of_input for one in _by_line(run, every))]:
        pairs = _used_and_needed(run, mine, name, {one: needed_by[one] for one in right})
        if any((used & ~needed & ~without_weight(name, one)).any() for one, (used, needed) in pairs.items()):
            continue  # threads read this input for each other
        faulty = _used_and_needed(run, mine, name, {one: needed_by[one] for one in wrong})
        bad = {one: both for one, both in faulty.items() if _is_another(*both, without_weight(name, one))}
        if not pairs:
            bad = {one: both for one, both in bad.items() if _in_place_of(*both)}
        if not bad or (not pairs and len(bad) < MOST * len(faulty)):
            continue
        thread, (used, needed) = next(iter(bad.items()))
        other = used & ~needed & ~without_weight(name, thread)
        its = mine[run.threads[mine] == thread]
        return _another(run, int(its[other[sources.of_read[its] - sources.first[name]]][0]), thread, name, used)
    return None


def _of(run: Run, name: str, accesses: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Mask of the accesses that deliver an element of an input."""
    here, delivered = run.slice_of(name), run.sources.of_read[accesses]
    return (delivered >= here.start) & (delivered < here.stop)


def _by_line(run: Run, uses: np.ndarray) -> list[np.ndarray]:
    """The reads grouped by line, if there are several: one of them may be correct."""
    _, first, entries = np.unique(run.trace.lines[uses], return_index=True, return_inverse=True)
    places = [run.trace.place_of(uses[one]) for one in first]
    lines = [place.at if place else None for place in places]
    every = list(dict.fromkeys(lines))
    of_key = np.array([every.index(one) for one in lines], dtype=np.int64)
    return [uses[of_key[entries] == number] for number in range(len(every))] if len(every) > 1 else []


def _used_and_needed(
    run: Run, uses: np.ndarray, name: str, needed_by: Mapping[int, Mapping[str, Tensor]]
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """For each of these threads that uses an input: the elements it uses, and those its results depend on."""
    here, found = run.slice_of(name), {}
    for thread, needed in needed_by.items():
        used = np.zeros(here.stop - here.start, dtype=bool)
        used[run.sources.of_read[uses[run.threads[uses] == thread]] - here.start] = True
        if used.any() and name in needed:
            found[thread] = used, needed[name].numpy()
    return found


def _without_weight(run: Run, case: Case) -> Callable[[str, int], np.ndarray]:
    """f(input, thread) -> mask of the input's elements for keys without weight in the rows that the thread stores."""
    weights = None
    if case.stages and all(name in run.inputs and run.inputs[name].dim() == 4 for name in (case.keys, case.values)):
        doubles = {name: x.double() if x.is_floating_point() else x for name, x in run.inputs.items()}
        weights = case.stages(**doubles).get("P")
    rows = 0 if weights is None else weights[..., 0].numel()

    def of(name: str, thread: int) -> np.ndarray:
        if not rows or name not in (case.keys, case.values) or run.wrong.size % rows:
            return np.zeros(run.inputs[name].numel(), dtype=bool)
        x, (batch, heads, queries, keys) = run.inputs[name], weights.shape
        mine = torch.zeros(rows, 1, dtype=torch.bool)
        mine[run.stored_by(thread) // (run.wrong.size // rows)] = True
        hidden = (mine.view(batch, heads, queries, 1) & (weights < SMALLEST)).any(2)
        of_head = hidden.view(batch, x.size(1), heads // x.size(1), keys).any(2)
        return of_head[..., None].expand_as(x).reshape(-1).numpy()

    return of


def _is_another(used: np.ndarray, needed: np.ndarray, allowed: np.ndarray) -> bool:
    """Whether an element is used that is neither needed nor allowed, and a needed one is not used."""
    return bool((used & ~needed & ~allowed).any() and (needed & ~used).any())


def _in_place_of(used: np.ndarray, needed: np.ndarray) -> bool:
    """Whether one set replaces the other: about the same size, or disjoint."""
    return abs(int(used.sum()) - int(needed.sum())) <= ABOUT * int(needed.sum()) or not (used & needed).any()


def _another(run: Run, access: int, thread: int, name: str, used: np.ndarray) -> Finding:
    elements, needed = which_depend(run, thread, name, used)
    text = f"This thread stores {run.out_said(elements)}, which depends on {run.said(name, needed)}; "
    text += f"it uses {run.said(name, used)}."
    more = []
    source = int(run.trace.seen[access])
    if source >= 0:
        text += f" Here it takes {run.delivered(access)}, as it was put there by the store shown."
        more = [access_of(run, source, "write")]
        origin = _first_read(run, source)
        if run.trace.place_of(origin) != run.trace.place_of(source):
            more.append(access_of(run, origin, "read"))
    return finding_of(run, "other_element", access, "read", text, more)


def _first_read(run: Run, store: int) -> int:
    """The first read in the chain of copies that ends in a store."""
    read = int(run.sources.copied_from[store])
    while read >= 0 and (before := int(run.trace.seen[read])) >= 0 and run.sources.copied_from[before] >= 0:
        read = int(run.sources.copied_from[before])
    return read


def _uses(run: Run) -> np.ndarray:
    """The reads of input elements that a thread uses itself.

    Excludes reads that are copied to memory to be read again, and direct reads of inputs by threads that also write to
    shared memory, since these may be for other threads.
    """
    trace, sources = run.trace, run.sources
    passed_on = np.zeros(trace.value.size, dtype=bool)
    copies = np.flatnonzero((sources.copied_from >= 0) & ~run.is_store)
    passed_on[sources.copied_from[copies]] = True
    shares = np.zeros(int(run.threads.max()) + 1, dtype=bool)
    shares[run.threads[trace.shared & trace.is_write]] = True
    for_others = ~trace.shared & shares[run.threads]
    return np.flatnonzero((sources.of_read >= 0) & ~passed_on & ~for_others)


# ---- missing elements


def not_read(run: Run) -> Finding | None:
    """The first thread with a wrong result that misses an element; None if a correct one also seems to miss one.

    If the origin of an array's contents is unknown: only if some threads have correct results and miss nothing.
    """
    trace, sources = run.trace, run.sources
    reach = reached(trace, sources, run.threads)
    if reach is None or (sources.unknown and not run.right):
        return None
    left = {one: _left_out(run, reach, one) for one in [*spread(run.right), *spread(run.wrong_threads)]}
    if any(left[thread] for thread in spread(run.right)):
        return None  # something reaches them in a way that was not observed
    for thread in spread(run.wrong_threads):
        if left[thread]:
            name = max(left[thread], key=lambda one: (one not in sources.first, left[thread][one].mean()))
            if found := _missed(run, reach, thread, name, left[thread][name]):
                return found
    return None


def _left_out(run: Run, reach: list[int], thread: int) -> dict[str, np.ndarray]:
    """For each input, the elements that a thread's results depend on but that do not reach it, if there are any."""
    here, found = mask_of(reach[thread], run.sources.count), {}
    elements = run.wrong_of(thread) if thread in run.wrong_threads else run.stored_by(thread)
    for name, needed in run.needs.of(elements).items():
        there = here[run.slice_of(name)] if name in run.sources.first else np.zeros(needed.numel(), dtype=bool)
        if (needed.numpy() & ~there).any():
            found[name] = needed.numpy() & ~there
    return found


def _missed(run: Run, reach: list[int], thread: int, name: str, missing: np.ndarray) -> Finding | None:
    trace, sources = run.trace, run.sources
    elements, needed = which_depend(run, thread, name, ~missing)
    missing = missing & needed if (missing & needed).any() else missing
    text = f"{run.out_said(elements)} depends on {run.said(name, needed)}. "
    store, x = run.accesses_of(thread)[-1], run.inputs[name]
    offset = int(np.flatnonzero(missing)[0]) * x.element_size()  # offset of the first missing element
    element = {"variable": name, "shape": tuple(x.shape), "element_bytes": x.element_size(), "byte_offset": offset}
    if name not in sources.first:
        text += f"No thread of any launch reads {name} at all."
        launch = trace.launches[trace.launch[store]]
        says, lines = _not_launched(run, name, launch)
        lines = lines if says else _silent(run)
        return Finding("not_read", launch.kernel, launch.launch, **element, detail=text + says, lines=tuple(lines))
    here = run.slice_of(name)
    text += f"Nothing that reaches the thread that stores it was made of {run.said(name, missing)}."
    in_block = (trace.blocks == trace.blocks[store]) & ~trace.is_write
    of_input = _of(run, name)
    own = np.flatnonzero(in_block & of_input & ~trace.shared)
    lost_here = own[missing[sources.of_read[own] - here.start]]
    inside = np.flatnonzero((run.threads == thread) & of_input & trace.shared)
    if lost_here.size and inside.size:  # another thread loaded it, but this one uses something else
        own = inside
    elif not own.size:  # it was passed through an intermediate result
        carried = np.flatnonzero(in_block & ~trace.shared & (sources.made_by >= 0))
        lost = bits_of(np.concatenate([np.zeros(here.start, dtype=bool), missing]))
        held = any(reach[run.threads[write]] & lost for write in np.unique(sources.made_by[carried]).tolist())
        everywhere = np.flatnonzero(of_input & ~trace.shared & ~trace.is_write)
        own = carried if held or not everywhere.size else everywhere
    if not own.size:
        return None
    mine = own[run.threads[own] == thread]
    read = np.zeros(missing.size, dtype=bool)
    read[sources.of_read[mine[of_input[mine]]] - here.start] = True
    if read.any() and not (read & needed).any():
        text += f" {READS_OTHERS}{run.said(name, read)}."
    access = int((mine if mine.size else own)[-1])
    is_lost = lost_here.size and READS_OTHERS not in text
    fate, more = _fate(run, int(lost_here[0]), thread) if is_lost else ("", [])
    found = finding_of(run, "not_read", access, "read", f"{text}{fate}", more)
    of_store = trace.place_of(run.writer[elements[0]])
    if of_store and not owned([trace.place_of(access) or of_store]):  # provided code reads for it
        found = replace(found, lines=tuple(sorted(run.made_at(of_store)[:MOST_LINES], key=lambda one: one.at)))
    return replace(found, space="global", **element)


def _not_launched(run: Run, name: str, launch: Launch) -> tuple[str, list[Place]]:
    """If the kernel that uses an argument did not run: a sentence saying so, and where it is launched and called."""
    ran = {one.kernel.split("<")[0] for one in run.trace.launches}
    uses = used_in(name, launch.kernel.split("<")[0], launch.launch) if launch.launch else []
    kernel = uses[0].function if uses else ""
    found = launches_of(kernel, uses[0].file) if kernel and kernel not in ran else None
    if found is None:
        return "", []
    return f" {kernel}, which uses it, {NOT_LAUNCHED}. {found[1]}".rstrip(), found[0]


def _fate(run: Run, read: int, thread: int) -> tuple[str, list[Access]]:
    """What happened to an element that one thread misses and another one read: in words, with the access to show."""
    trace = run.trace
    stores = np.flatnonzero(run.sources.copied_from == read)
    who = "The thread itself" if run.threads[read] == thread else "Another thread"
    said = f" {who} reads {run.delivered(read)}"
    if not stores.size:
        return f"{said}.", [access_of(run, read, "read")]
    store = int(stores[0])
    unread = "" if (trace.seen[~trace.is_write] == store).any() else "; no thread reads it from there"
    return f"{said} and stores it where it is shown{unread}.", [access_of(run, store, "write")]


def _silent(run: Run) -> list[Place]:
    """The student's lines in the launched kernels and their functions that access an array but have no recorded access,
    in source order, at most MOST_SILENT."""
    places = [entry.place for launch in run.trace.launches for entry in launch.entries if entry.place]
    near = {(one.file, one.line - more) for one in places for more in range(STATEMENT_LINES)}  # multi-line statements
    kernels = {launch.kernel.split("<")[0] for launch in run.trace.launches}
    found = []
    for file in run.files:
        source = read(file)
        for function in _behind(kernels, source) if source else ():
            found += [Place(file, line) for line in _accesses(function, source) if (file, line) not in near]
    return owned(sorted(set(found), key=lambda one: one.at))[:MOST_SILENT]


def _behind(kernels: set[str], source: Source) -> list[Function]:
    """The kernels among a file's functions, and the functions that they call."""
    todo, found = [one for name in kernels if (one := source.function(name))], {}
    while todo:
        one = todo.pop()
        if one.name not in found:
            found[one.name] = one
            todo += [other for call in one.calls if (other := source.function(call.name))]
    return list(found.values())


def _accesses(function: Function, source: Source) -> list[int]:
    """The lines of a function that index one of its pointers."""
    pointers = {one.name for one in function.parameters if one.is_seen_outside and not one.is_reference}
    pointers |= {one.name for one in function.changes if "*" in source.lines[one.line - 1].split("=")[0]}
    subscripts = [one for one in walk(function.body) if one.type == "subscript_expression"]
    return [line_of(one) for one in subscripts if arrays_in(one)[:1] and arrays_in(one)[0] in pointers]


# ---- infinity and NaN


def not_needed(run: Run, out: Tensor, case: Case) -> Finding | None:
    """The first thread with a NaN result that such an element reaches; None if one also reaches a correct result.

    Dependencies are computed with finite numbers in their place: a key whose score is -infinity is needed.
    """
    floats = {name: x for name, x in run.inputs.items() if x.is_floating_point()}
    finite = {name: x.nan_to_num(nan=0.5, posinf=0.5, neginf=0.5) for name, x in floats.items()}
    wild = {name: (~torch.isfinite(x).reshape(-1)).numpy() for name, x in floats.items() if name in run.sources.names}
    # a tile of queries includes the keys of all its rows
    of_keys = {case.keys, case.values, *((case.scores.keys, case.scores.values) if case.scores else ())} - {""}
    wild = {name: one for name, one in wild.items() if one.any() and name in (of_keys or wild)}
    nan = run.wrong & torch.isnan(out.cpu().reshape(-1)).numpy()
    reach = reached(run.trace, run.sources, run.threads) if wild and nan.any() and not run.sources.unknown else None
    if reach is None:
        return None
    needs = Needs(case.reference, {**run.inputs, **finite})

    def extra(thread: int) -> dict[str, np.ndarray]:
        here, found = mask_of(reach[thread], run.sources.count), {}
        for name, needed in needs.of(run.stored_by(thread)).items():
            if name in wild and (more := wild[name] & here[run.slice_of(name)] & ~needed.numpy()).any():
                found[name] = more
        return found

    if any(extra(thread) for thread in spread(run.right)):
        return None
    for thread in spread([one for one in run.wrong_threads if nan[run.wrong_of(one)].any()]):
        for name, more in extra(thread).items():
            return _spoilt(run, thread, name, more, nan)
    return None


def _spoilt(run: Run, thread: int, name: str, more: np.ndarray, nan: np.ndarray) -> Finding | None:
    elements = run.wrong_of(thread)
    first = elements[nan[elements]][:1]
    wanted = np.flatnonzero(more) + run.sources.first[name]
    reads = np.flatnonzero(np.isin(run.sources.of_read, wanted) & (run.trace.memory == run.sources.memory_of[name]))
    own = reads[run.trace.block[reads] == run.trace.block[run.writer[first[0]]]]
    if not own.size:
        return None
    text = (
        f"{run.out_said(first)} is NaN. It depends on no element of {run.said(name, more)}; they are infinite or NaN, "
        "and are read for it anyway. 0 times infinity is NaN: a weight of 0 does not make up for it."
    )
    return finding_of(run, "not_needed", int(own[0]), "read", text)

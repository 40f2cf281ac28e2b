"""Elements that a result depends on and that cannot have reached the thread that stores it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from common.inspect.findings.model import NOT_LAUNCHED, READS_OTHERS, Access, Finding
from common.inspect.flow.reached import bits_of, mask_of, reached
from common.inspect.flow.run import Run, access_of, finding_of, spread, which_depend
from common.inspect.flow.silent import silent
from common.inspect.made_of import made_of
from common.inspect.origins import launches_of, used_in
from common.inspect.own_lines import owned
from common.inspect.replay.recording import Launch
from common.inspect.source_lines import Place

MOST_LINES = 8  # of the student, where given code reads


def not_read(run: Run) -> Finding | None:
    """The first thread with a wrong result that misses something; None if a right one seems to miss something, too.

    Where the origin of what an array holds is unknown, only if some threads have right results and miss nothing.
    """
    trace, sources = run.trace, run.sources
    reach = reached(trace, sources, run.threads)
    if reach is None or (sources.unknown and not run.right):
        return None
    left = {one: _left_out(run, reach, one) for one in [*spread(run.right), *spread(run.wrong_threads)]}
    if any(left[thread] for thread in spread(run.right)):
        return None  # something reaches them on a way that was not seen
    for thread in spread(run.wrong_threads):
        if left[thread]:
            name = max(left[thread], key=lambda one: (one not in sources.first, left[thread][one].mean()))
            if found := _reported(run, reach, thread, name, left[thread][name]):
                return found
    return None


def misses_nothing(run: Run, element: int) -> bool:
    """Whether an element depends on anything, and all of it is known and reaches the thread that stores it."""
    reach = reached(run.trace, run.sources, run.threads) if run.needs and not run.sources.unknown else None
    if reach is None:
        return False
    here = mask_of(reach[run.threads[run.writer[element]]], run.sources.count)
    needed = run.needs.of([element])
    if len(needed) < len(run.needs.leaves):
        return False
    used = {name: one.numpy() for name, one in needed.items() if bool(one.any())}
    return bool(used) and all(
        name in run.sources.first and not (one & ~here[run.slice_of(name)]).any() for name, one in used.items()
    )


def _left_out(run: Run, reach: list[int], thread: int) -> dict[str, np.ndarray]:
    """For each input the elements that what a thread stores depends on and that do not reach it, if there are any."""
    here, found = mask_of(reach[thread], run.sources.count), {}
    elements = run.wrong_of(thread) if thread in run.wrong_threads else run.stored_by(thread)
    for name, needed in run.needs.of(elements).items():
        there = here[run.slice_of(name)] if name in run.sources.first else np.zeros(needed.numel(), dtype=bool)
        if (needed.numpy() & ~there).any():
            found[name] = needed.numpy() & ~there
    return found


def _reported(run: Run, reach: list[int], thread: int, name: str, missing: np.ndarray) -> Finding | None:
    trace, sources = run.trace, run.sources
    elements, needed = which_depend(run, thread, name, ~missing)
    missing = missing & needed if (missing & needed).any() else missing
    text = f"{run.out_said(elements)} depends on {run.said(name, needed)}. "
    store = run.accesses_of(thread)[-1]
    if name not in sources.first:
        text += f"No thread of any launch reads {name} at all."
        launch = trace.launches[trace.launch[store]]
        says, lines = _not_launched(run, name, launch)
        lines = lines if says else silent(run)
        element = _element(run, name, missing)
        detail = f"{text}{says}"
        return Finding("not_read", launch.kernel, launch.launch, **element, detail=detail, lines=tuple(lines))
    here = run.slice_of(name)
    text += f"Nothing that reaches the thread that stores it was made of {run.said(name, missing)}."
    last, block = trace.launch[store], trace.block[store]
    in_block = (trace.launch == last) & (trace.block == block) & ~trace.is_write
    direct = np.array([not one.is_shared for one in trace.memories])[trace.memory]
    of_input = (sources.of_read >= here.start) & (sources.of_read < here.stop)
    own = np.flatnonzero(in_block & of_input & direct)
    lost_here = own[missing[sources.of_read[own] - here.start]]
    inside = np.flatnonzero((run.threads == thread) & of_input & ~direct)
    if lost_here.size and inside.size:  # another thread loaded it, and this one uses something else
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
        text += f" {READS_OTHERS}{run.said(name, read)}."
    access = int((mine if mine.size else own)[-1])
    is_lost = lost_here.size and READS_OTHERS not in text
    fate, more = _fate(run, int(lost_here[0]), thread) if is_lost else ("", [])
    found = finding_of(run, "not_read", access, "read", f"{text}{fate}", more)
    of_store = trace.entry_of(int(run.writer[elements[0]])).place
    if of_store and not owned([trace.entry_of(access).place or of_store]):  # given code reads for it
        lines = owned(made_of(of_store, run.files))[:MOST_LINES]
        found = replace(found, lines=tuple(sorted(lines, key=lambda one: (one.file, one.line))))
    return replace(found, space="global", **_element(run, name, missing))


def _not_launched(run: Run, name: str, launch: Launch) -> tuple[str, list[Place]]:
    """Of the kernel that uses an argument, if it did not run: that it did not, and where it is launched and called."""
    ran = {one.kernel.split("<")[0] for one in run.trace.launches}
    uses = used_in(name, launch.kernel.split("<")[0], launch.launch) if launch.launch else []
    kernel = uses[0].function if uses else ""
    found = launches_of(kernel, uses[0].file) if kernel and kernel not in ran else None
    if found is None:
        return "", []
    return f" {kernel}, which uses it, {NOT_LAUNCHED}. {found[1]}".rstrip(), found[0]


def _fate(run: Run, read: int, thread: int) -> tuple[str, list[Access]]:
    """What became of an element that a thread misses and another one read: in words, with the access that shows it."""
    trace, sources = run.trace, run.sources
    name = next(one for one in reversed(sources.names) if sources.first[one] <= sources.of_read[read])
    one = np.zeros(run.inputs[name].numel(), dtype=bool)
    one[sources.of_read[read] - sources.first[name]] = True
    stores = np.flatnonzero(sources.copied_from == read)
    who = "The thread itself" if run.threads[read] == thread else "Another thread"
    if not stores.size:
        return f" {who} reads {run.said(name, one)}.", [access_of(run, read, "read")]
    store = int(stores[0])
    said = f" {who} reads {run.said(name, one)} and stores it where it is shown"
    if not (trace.seen[~trace.is_write] == store).any():
        said += "; no thread reads it from there"
    return f"{said}.", [access_of(run, store, "write")]


def _element(run: Run, name: str, missing: np.ndarray) -> dict[str, object]:
    """Of a Finding: the first element of an input that is missing."""
    x = run.inputs[name]
    first = int(np.flatnonzero(missing)[0])
    return {
        "variable": name,
        "shape": tuple(x.shape),
        "element_bytes": x.element_size(),
        "byte_offset": first * x.element_size(),
    }

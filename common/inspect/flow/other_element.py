"""An element that a thread uses in place of the one that its result depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from common.inspect.findings.model import Finding
from common.inspect.flow.needs import SMALLEST
from common.inspect.flow.run import Run, access_of, finding_of, spread, which_depend
from common.testing.case import Case

ABOUT = 0.1  # by which the sizes of two sets may differ
MOST = 0.75  # of the threads without a right output must show the same, where none is right


def other_element(run: Run, case: Case) -> Finding | None:
    """The first thread with a wrong result that uses what it does not need, and not what it needs.

    Only of inputs of which the threads with right results use nothing that they do not need themselves. Where no thread
    is right the one set must be there in place of the other in most of them. Keys without a weight may be used: a tile
    holds them, and the mask hides them later.
    """
    sources, threads, wrong, right = run.sources, run.threads, run.wrong_threads, run.right
    without_weight = _without_weight(run, case)
    uses = _uses(run)
    needed_by = {one: run.needs.of(run.stored_by(one)) for one in [*spread(wrong), *spread(right)]}
    of_input = {name: _among(uses, sources.of_read, run.slice_of(name)) for name in sources.names}
    of_line = [(name, one) for name, mine in of_input.items() for one in _by_line(run, mine)]
    for name, mine in [*of_input.items(), *of_line]:
        here = run.slice_of(name)
        pairs = _used_and_needed(run, mine, name, {one: needed_by[one] for one in spread(right)})
        if any((used & ~needed & ~without_weight(name, one)).any() for one, (used, needed) in pairs.items()):
            continue  # its threads use this input for each other
        faulty = _used_and_needed(run, mine, name, {one: needed_by[one] for one in spread(wrong)})
        bad = {one: both for one, both in faulty.items() if _is_another(*both, without_weight(name, one))}
        if not pairs:
            bad = {one: both for one, both in bad.items() if _in_place_of(*both)}
            if len(bad) < MOST * len(faulty):
                continue
        if not bad:
            continue
        thread, (used, needed) = next(iter(bad.items()))
        other = used & ~needed & ~without_weight(name, thread)
        access = int(mine[(threads[mine] == thread) & other[sources.of_read[mine] - here.start]][0])
        return _reported(run, access, thread, name, used)
    return None


def _among(uses: np.ndarray, of_read: np.ndarray, here: slice) -> np.ndarray:
    return uses[(of_read[uses] >= here.start) & (of_read[uses] < here.stop)]


def _by_line(run: Run, uses: np.ndarray) -> list[np.ndarray]:
    """The reads of each line, where there are several: one may read what it should."""
    trace = run.trace
    _, first, entries = np.unique(
        trace.launch[uses].astype(np.int64) * (1 << 32) + trace.entry[uses], return_index=True, return_inverse=True
    )
    places = [trace.entry_of(int(uses[one])).place for one in first]
    lines = [(place.file, place.line) if place else None for place in places]
    every = list(dict.fromkeys(lines))
    of_key = np.array([every.index(one) for one in lines], dtype=np.int64)
    return [uses[of_key[entries] == number] for number in range(len(every))] if len(every) > 1 else []


def _used_and_needed(
    run: Run, uses: np.ndarray, name: str, needed_by: Mapping[int, Mapping[str, Tensor]]
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """For each of these threads that uses an input at all: what it uses of it, and what its results depend on."""
    here, found = run.slice_of(name), {}
    for thread, needed in needed_by.items():
        used = np.zeros(here.stop - here.start, dtype=bool)
        used[run.sources.of_read[uses[run.threads[uses] == thread]] - here.start] = True
        if used.any() and name in needed:
            found[thread] = used, needed[name].numpy()
    return found


def _without_weight(run: Run, case: Case) -> Callable[[str, int], np.ndarray]:
    """f(input, thread) -> which elements of the input belong to keys that have no weight in a row that it stores."""
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
    """Whether something is used that is neither needed nor allowed, and something needed is not used."""
    return bool((used & ~needed & ~allowed).any() and (needed & ~used).any())


def _in_place_of(used: np.ndarray, needed: np.ndarray) -> bool:
    """Whether one set is there in place of the other: about as large, or without an element in common."""
    return abs(int(used.sum()) - int(needed.sum())) <= ABOUT * int(needed.sum()) or not (used & needed).any()


def _reported(run: Run, access: int, thread: int, name: str, used: np.ndarray) -> Finding:
    elements, needed = which_depend(run, thread, name, used)
    text = f"This thread stores {run.out_said(elements)}, which depends on {run.said(name, needed)}; "
    text += f"it uses {run.said(name, used)}."
    more = []
    source = int(run.trace.seen[access])
    if source >= 0:
        first = run.sources.of_read[access] - run.sources.first[name]
        one = np.zeros(used.size, dtype=bool)
        one[first] = True
        text += f" Here it takes {run.said(name, one)}, as it was put there by the store shown."
        more = [access_of(run, source, "write")]
        origin = _first_read(run, source)
        if run.trace.entry_of(origin).place != run.trace.entry_of(source).place:
            more.append(access_of(run, origin, "read"))
    return finding_of(run, "other_element", access, "read", text, more)


def _first_read(run: Run, store: int) -> int:
    """The read that brought what a store passes on."""
    read = int(run.sources.copied_from[store])
    while read >= 0 and (before := int(run.trace.seen[read])) >= 0 and run.sources.copied_from[before] >= 0:
        read = int(run.sources.copied_from[before])
    return read


def _uses(run: Run) -> np.ndarray:
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

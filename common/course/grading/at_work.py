"""How many threads did the work, from a counted build's counters (common/simulator/runtime/work.cpp).

A kernel can launch a thousand threads and let one do everything. Then the total work equals that of the busiest thread;
in a parallel program it is many times that. The correct variants in tests/variants have at least 164 threads at work in
a launch and at least 27 in a block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

# Bytes of machine code that the busiest thread may execute per element of the inputs and output: in general, and where
# matrices are multiplied. In the 61 submissions of `python -m common.course attack --kind honest`, which prints each
# one's share, the busiest thread executes at most 1.8 (task 6, one block per head of the cache) and 32 (task 5, one
# thread per query). The bounds leave slower kernels 5 and 3 times as much; a serial softmax takes 120, a decoder 77.
MOST_FOR_A_NUMBER, MOST_FOR_PRODUCTS = 10, 110
FEWEST = 4  # with fewer threads at work in a launch, a part earns nothing
FEW_IN_BLOCK = 8  # with fewer in a block, the part is flagged for a human


def allowed(inputs: Mapping[str, Tensor], out: Tensor | None, in_place: Sequence[str] = ()) -> int:
    """Bytes of machine code that one thread may execute in a call. A call that writes to its inputs only copies the
    others there: just these count, since it need not touch the rest."""
    read = [x for name, x in inputs.items() if name not in in_place]
    numbers = sum(x.numel() for x in read)
    if in_place:
        return MOST_FOR_A_NUMBER * numbers
    matrices = [x for x in read if x.dim() > 2]
    rows = matrices[0].size(-2) if len(matrices) > 1 else 1  # 1: decoding, where each cache element is in few products
    numbers += 0 if out is None else out.numel()
    return numbers * min(MOST_FOR_PRODUCTS, MOST_FOR_A_NUMBER * rows)


def share(counts: Mapping[str, int]) -> int:
    """The busiest thread's work in percent of what is allowed in a call."""
    return 100 * counts["most_work"] // max(1, counts["allowed"])


def at_work(counts: Mapping[str, int]) -> float:
    """Effective parallelism of a launch: the total work divided by that of the busiest thread."""
    return counts.get("work", 0) / max(1, counts.get("most_work", 0))


def at_work_in_block(counts: Mapping[str, int]) -> float:
    """The same within a thread block."""
    return counts.get("work_of_block", 0) / max(1, counts.get("most_of_block", 0))


def too_few(counts: Mapping[str, int]) -> str:
    """Why a part earns nothing; "" if enough threads did work."""
    working = at_work(counts)
    if counts.get("most_work", 0) > counts.get("allowed", 0):
        return "One thread does what a program without any others would have to do."
    if working >= FEWEST:
        return ""
    if not working:
        return "What the threads of its kernels do could not be counted."
    # no counts here: they would reveal a hidden case's size
    return f"Few threads do all the work: what they do is not {FEWEST} times what the busiest one does."


def idle_blocks(part: str, counts: Mapping[str, int]) -> list[str]:
    """A flag if few threads per block do work; it costs no points, since there may be many blocks."""
    working = at_work_in_block(counts)
    if not counts.get("work") or working >= FEW_IN_BLOCK:
        return []
    return [f"{part}: of the threads of a block {working:.1f} work at a time"]

"""How many threads did the work, by what a counted build says of a run (common/simulator/runtime/work.cpp).

A thousand threads may be launched and one of them do everything. Then the work of all is that of the busiest one; in a
parallel program it is that of many. The right variants in tests/variants have 164 or more at work in a launch, 27 or
more in a block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

# Bytes of machine code that the busiest thread may run for each number of inputs and output, and where matrices are
# multiplied. In the 61 submissions of `python -m common.course attack --kind honest`, which prints the share that each
# takes, the busiest thread runs at most 1.6 (in task 6, a block for each head of the cache) and 22 (in task 5, a thread
# for each query). The bounds leave slower kernels 6 and 5 times as much; a serial softmax runs 120, a decoder 77.
MOST_FOR_A_NUMBER, MOST_FOR_PRODUCTS = 10, 110
FEWEST = 4  # with fewer at work in a launch a part earns nothing
FEW_IN_BLOCK = 8  # with fewer in a block somebody should have a look


def allowed(inputs: Sequence[Tensor], out: Tensor | None) -> int:
    """Bytes of machine code that one thread may run in a call."""
    matrices = [x for x in inputs if x.dim() > 2]
    rows = matrices[0].size(-2) if len(matrices) > 1 else 1  # 1: decoding, each number of a cache is in few products
    numbers = sum(x.numel() for x in inputs) + (0 if out is None else out.numel())
    return numbers * min(MOST_FOR_PRODUCTS, MOST_FOR_A_NUMBER * rows)


def share(counts: Mapping[str, int]) -> int:
    """Percent of what is allowed in a call that the busiest thread ran."""
    return 100 * counts["most_work"] // max(1, counts["allowed"])


def at_work(counts: Mapping[str, int]) -> float:
    """How many threads of a launch work at a time: what all do in units of what the busiest does."""
    return counts.get("work", 0) / max(1, counts.get("most_work", 0))


def at_work_in_block(counts: Mapping[str, int]) -> float:
    """The same within a thread block."""
    return counts.get("work_of_block", 0) / max(1, counts.get("most_of_block", 0))


def too_few(counts: Mapping[str, int]) -> str:
    """Why a part earns nothing; "" if enough threads worked."""
    working = at_work(counts)
    if counts.get("most_work", 0) > counts.get("allowed", 0):
        return "One thread does what a program without any others would have to do."
    if working >= FEWEST:
        return ""
    if not working:
        return "What the threads of its kernels do could not be counted."
    # without the counts: they would tell of a hidden case's size
    return f"Few threads do all the work: what they do is not {FEWEST} times what the busiest one does."


def idle_blocks(part: str, counts: Mapping[str, int]) -> list[str]:
    """A flag for a part in whose blocks few threads work; it changes no points, since there may be many blocks."""
    working = at_work_in_block(counts)
    if not counts.get("work") or working >= FEW_IN_BLOCK:
        return []
    return [f"{part}: of the threads of a block {working:.1f} work at a time"]

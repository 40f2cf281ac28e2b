"""How fast the decode kernel is on a GPU, compared with recomputing everything with task 4, and PyTorch's attention.

    measure_problem(problem, ops)        one problem: checked, then timed
    SPEED                                the part, for common.cli.test.TaskTest

One step of one layer over a cache that holds `tokens` tokens, float32, without the linear layers around it:

    decode      decode_attention: one query per sequence over the cache
    split       the same, keys split into parts, merged by task 3 (if this optional part is implemented)
    recompute   the cost without a cache: causal attention of all tokens with task 4's flash_attention
    PyTorch     scaled_dot_product_attention of one query over the same cache
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from common.compiling.operators import Operators
from common.measure import report
from common.measure.limits import float32_precision, measure_limits
from common.measure.report import duration
from common.measure.timing import Stopwatch, Timing, measure
from common.reference.bounds import running_sum_floor
from common.testing import results
from common.testing.measurement import Earned, Measurement, TestRun
from common.testing.python_side import python_side
from task6.given.operators import load_beside

BLOCK = "task6 speedups"  # in Results.md
ROUNDS = 20
BLOCKS_PER_SM = 4  # split: the target number of blocks,
KEYS_PER_PART = 128  # and the minimum number of keys per part
PYTORCH, RECOMPUTE, DECODE, SPLIT = "PyTorch", "recompute", "decode", "split"


@dataclass(frozen=True)
class Problem:
    """One decode step: `tokens` keys and values of each of `heads` heads of `batch` sequences."""

    batch: int
    heads: int
    head_dim: int
    tokens: int

    @property
    def name(self) -> str:
        return f"{self.batch}, {self.heads}, {self.head_dim}, {self.tokens:,}"

    @property
    def cache_bytes(self) -> int:
        """Bytes of K and V together; a step reads each once."""
        return 2 * 4 * self.batch * self.heads * self.tokens * self.head_dim


PROBLEMS = (Problem(1, 16, 64, 1124), Problem(1, 16, 64, 8192), Problem(16, 16, 64, 1124), Problem(16, 16, 64, 4096))


def splits_for(problem: Problem, sms: int) -> int:
    """The number of parts that keeps every SM busy, limited by KEYS_PER_PART; at least 1."""
    wanted = -(-BLOCKS_PER_SM * sms // (problem.batch * problem.heads))
    return max(1, min(wanted, problem.tokens // KEYS_PER_PART))


def peers_of(problem: Problem, ops: Operators, sms: int) -> dict[str, Callable[..., Tensor]]:
    """Name -> function from make_inputs' result to [batch, heads, 1, head_dim] (RECOMPUTE: for all tokens)."""
    python, splits = python_side(ops), splits_for(problem, sms)
    merge_ops, flash_ops = (load_beside(ops, task) for task in ("task3", "task4"))  # loading takes milliseconds

    def split(query: Tensor, newest: Tensor, key: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
        return python.decode_attention_split(ops, merge_ops, newest, key, value, lengths, splits)

    return {
        DECODE: lambda query, newest, key, value, lengths: ops.decode_attention(newest, key, value, lengths),
        **({} if ops.variant == "tuned" else {SPLIT: split}),  # the tuned kernels split on their own
        RECOMPUTE: lambda query, newest, key, value, lengths: flash_ops.flash_attention(query, key, value, True),
        PYTORCH: lambda query, newest, key, value, lengths: F.scaled_dot_product_attention(newest, key, value),
    }


def make_inputs(problem: Problem, device: torch.device) -> tuple[Tensor, ...]:
    """(the queries of all tokens, the newest query, keys, values, lengths)."""
    shape = (problem.batch, problem.heads, problem.tokens, problem.head_dim)
    query, key, value = (torch.randn(shape, device=device) for _ in range(3))
    lengths = torch.full((problem.batch,), problem.tokens, dtype=torch.int32, device=device)
    return query, query[:, :, -1:].contiguous(), key, value, lengths


def checked_peers(problem: Problem, ops: Operators, sms: int) -> dict[str, Callable[..., Tensor]]:
    """The implemented ones of peers_of, each checked against float64.

    Raises:
        NotImplementedError: decode_attention has an unfilled gap.
        ValueError: an output is wrong.
    """
    inputs = make_inputs(problem, ops.device)
    right = F.scaled_dot_product_attention(*(x.double() for x in inputs[1:4]))
    bound = 1e-5 + running_sum_floor(problem.tokens, 4)
    good = {}
    for name, call in peers_of(problem, ops, sms).items():
        try:
            error = float((call(*inputs)[:, :, -1:].double() - right).abs().max())
        except NotImplementedError:
            if name == DECODE:
                raise
            continue
        if not error <= bound:
            raise ValueError(f"{problem.name}: {name} is wrong by {error:.1e}; at most {bound:.1e} is allowed")
        good[name] = call
    return good


def measure_problem(
    problem: Problem,
    ops: Operators,
    sms: int,
    rounds: int = ROUNDS,
    stopwatch: Stopwatch | None = None,
) -> dict[str, Timing]:
    """Checks and times everything that is implemented, in turn; name -> Timing. Raises what checked_peers raises."""
    with float32_precision("highest"), torch.no_grad():
        peers = checked_peers(problem, ops, sms)
        return measure(peers, lambda: make_inputs(problem, ops.device), rounds, stopwatch=stopwatch)


COLUMNS = ("batch, heads, head_dim, tokens", "decode", "TB/s", "of copy", "split", RECOMPUTE, PYTORCH, "speedups")


def cells(problem: Problem, timings: dict[str, Timing], copy_rate: float) -> list[str]:
    """A row of the table. Speedups: the faster of decode and split, over recomputing and over PyTorch."""
    decode = timings[DECODE].seconds
    best = min(timings[name].seconds for name in (DECODE, SPLIT) if name in timings)
    rate = problem.cache_bytes / decode

    def shown(name: str) -> str:
        return duration(timings[name].seconds) if name in timings else "-"

    def speedup(name: str) -> str:
        return f"{timings[name].seconds / best:.3g} x" if name in timings else "-"

    return [
        problem.name,
        shown(DECODE),
        f"{rate / 1e12:.2f}",
        f"{rate / copy_rate:.0%}",
        shown(SPLIT),
        shown(RECOMPUTE),
        shown(PYTORCH),
        f"{speedup(RECOMPUTE)}, {speedup(PYTORCH)}",
    ]


NOTE = (
    "One step of one layer, float32, medians. TB/s and the share of a measured copy are those of decode, which reads K "
    "and V once. Speedups: of the faster of decode and split, over recomputing everything by task 4, and over "
    "PyTorch's scaled_dot_product_attention over the same cache."
)


def table(rows: Sequence[Sequence[str]]) -> Table:
    """A table of `cells` results, a row per problem."""
    made = Table(title="speed, float32", title_justify="left")
    for number, column in enumerate(COLUMNS):
        made.add_column(column, justify="right" if number else "left")
    for row in rows:
        made.add_row(*map(escape, row))
    return made


def run(test_run: TestRun) -> list[Earned]:
    """Times all problems, prints the table, and writes it into Results.md with --report."""
    console, ops = test_run.console, test_run.ops
    copy_rate = measure_limits(matmul=()).copy
    sms = torch.cuda.get_device_properties().multi_processor_count
    rows = [cells(problem, measure_problem(problem, ops, sms), copy_rate) for problem in PROBLEMS]
    console.print(table(rows))
    console.print(NOTE, highlight=False)
    if not test_run.options.report:
        return [Earned("speed")]
    block = results.Block(test_run.command, report.machine(), COLUMNS, rows, [NOTE])
    return [Earned("speed", problems=results.try_report(console, BLOCK, block))]


SPEED = Measurement(
    {"speed": "time the decode kernel only, on a GPU"},
    run,
    needs_gpu=True,
    without_gpu="speed: not measured: the simulator does not model timing. On a GPU this shows how much faster a "
    "decode step is than recomputing everything, and than PyTorch's.",
    reports=True,
)

"""The speed part of task 4's test: the kernel inside a multi-head attention layer, against torch.nn.MultiheadAttention.

    measure_layer(configuration, ops)      one configuration: checked, then timed
    points_for(speedup)                    the points for its speedup
    SPEED                                  the part, for common.cli.test.TaskTest

The four configurations are in float32, without TF32 in the projections; both layers have the same weights and inputs
and are timed in turn (common/measure/timing.py). The peer is the module in its fastest configuration: eval(), no
gradients, need_weights=False, and PyTorch's fast path where there is no mask. (With a causal mask, the fast path stores
the mask and all scores; without the fast path, the module calls scaled_dot_product_attention with is_causal=True, which
is faster.) The time with need_weights=True, the module's default, is reported next to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from common.console.terminal import say
from common.measure import report
from common.measure.limits import float32_precision, measure_limits
from common.measure.timing import Stopwatch, Timing, measure
from common.reference import oracle as reference
from common.reference.layer import AttentionLayer
from common.testing import results
from common.testing.case import Case, Verdict
from common.testing.cases.layer import layer_case, torch_module
from common.testing.judging import judge
from common.testing.measurement import Earned, Measurement, TestRun

if TYPE_CHECKING:
    from common.compiling.operators import Operators

POINTS = 2.0
FULL_FROM, HALF_FROM = 0.6, 0.4  # speedups; the handout explains them
BLOCK = "task4 speedups"  # in Results.md
ROUNDS = 20


@dataclass(frozen=True)
class Configuration:
    """The sizes of a layer and its input [batch, seq_len, hidden_dim]."""

    batch: int
    seq_len: int
    hidden_dim: int
    heads: int
    causal: bool

    @property
    def head_dim(self) -> int:
        return self.hidden_dim // self.heads

    @property
    def name(self) -> str:
        """ "4, 1024, 1024, 16, causal": batch, tokens, hidden width, heads."""
        sizes = f"{self.batch}, {self.seq_len}, {self.hidden_dim}, {self.heads}"
        return sizes + (", causal" if self.causal else "")

    @property
    def attention_flops(self) -> float:
        """FLOPs of Q K^T and P V, 2 per multiply-add; half of them under a causal mask."""
        return 4 * self.batch * self.seq_len**2 * self.hidden_dim * (0.5 if self.causal else 1.0)


CONFIGURATIONS = (
    Configuration(4, 1024, 1024, 16, causal=False),
    Configuration(4, 1024, 1024, 16, causal=True),
    Configuration(8, 512, 1024, 8, causal=False),
    Configuration(2, 2048, 1024, 16, causal=True),
)


class KernelLayer(AttentionLayer):
    """The timed layer: multi-head self-attention built on flash_attention of task 4's operators.

    Args:
        hidden_dim, num_heads, causal: see AttentionLayer; head_dim is at most 128.
        ops: the operators; the weights are on ops.device.
    """

    def __init__(self, hidden_dim: int, num_heads: int, causal: bool, ops: Operators) -> None:
        super().__init__(hidden_dim, num_heads, causal, ops.device)
        self.ops = ops

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """x [batch, seq_len, hidden_dim], float32 -> the same; no gradient."""
        qkv = self.split_heads(x)
        if self.ops.variant != "tuned":  # the tuned kernels read the heads in place
            qkv = qkv.contiguous()
        return self.out_projection(self.merge_heads(self.ops.flash_attention(*qkv, self.causal)))


@dataclass(frozen=True)
class LayerSpeed:
    """The measurements for one configuration.

    Attributes:
        layer: KernelLayer on the operators.
        torch_layer: torch.nn.MultiheadAttention, need_weights=False.
        torch_with_weights: the same, need_weights=True.
        kernel: the operator alone, on contiguous tensors.
    """

    configuration: Configuration
    layer: Timing
    torch_layer: Timing
    torch_with_weights: Timing
    kernel: Timing

    @property
    def speedup(self) -> float:
        """Over torch.nn.MultiheadAttention without weights."""
        return self.torch_layer.seconds / self.layer.seconds

    @property
    def kernel_rate(self) -> float:
        """Floating-point operations per second of the kernel alone."""
        return self.configuration.attention_flops / self.kernel.seconds


def points_for(speedup: float) -> float:
    """One configuration's points: its full share of the part's points, half of it, or none."""
    share = POINTS / len(CONFIGURATIONS)
    return share if speedup >= FULL_FROM else share / 2 if speedup >= HALF_FROM else 0.0


def case_of(configuration: Configuration) -> Case:
    """The layer compared with torch.nn.MultiheadAttention in float64, like the test's cases."""
    return layer_case(
        lambda ops, module, causal: KernelLayer.from_multihead_attention(module, causal, ops=ops),
        "speed",
        configuration.name,
        configuration.batch,
        configuration.seq_len,
        configuration.hidden_dim,
        configuration.heads,
        configuration.causal,
        draws=1,
    )


def judge_layer(configuration: Configuration, ops: Operators, seed: int = 0) -> Verdict:
    """Judges the layer's output."""
    return judge(case_of(configuration), ops, seed)


def prepare(ops: Operators | None, number: int, inputs: Mapping[str, Tensor]) -> Callable[[], Tensor]:
    """The call timed by grading (common/course/grading/timed.py): the layer on these operators, or PyTorch's.

    Args:
        ops: task 4's; None: torch.nn.MultiheadAttention in its fastest configuration.
        number: of the configuration.
        inputs: those of case_of, on the GPU.
    """
    configuration = CONFIGURATIONS[number]
    torch.set_float32_matmul_precision("highest")
    torch.backends.mha.set_fastpath_enabled(not configuration.causal)
    x, module = inputs["x"], torch_module(configuration.heads, **inputs)
    if ops is not None:
        layer = KernelLayer.from_multihead_attention(module, configuration.causal, ops=ops)
        return lambda: layer(x)
    hidden = ~reference.causal_mask(x.size(1), x.size(1), x.device) if configuration.causal else None
    call = partial(module, x, x, x, attn_mask=hidden, is_causal=configuration.causal, need_weights=False)
    return lambda: torch.no_grad()(call)()[0]


def measure_layer(
    configuration: Configuration, ops: Operators, rounds: int = ROUNDS, stopwatch: Stopwatch | None = None
) -> LayerSpeed:
    """Times the layer, PyTorch's with and without weights, and the kernel alone, in turn; medians of `rounds` runs."""
    sizes = configuration
    module = nn.MultiheadAttention(sizes.hidden_dim, sizes.heads, batch_first=True, device=ops.device).eval()
    layer = KernelLayer.from_multihead_attention(module, sizes.causal, ops=ops)
    hidden = ~reference.causal_mask(sizes.seq_len, sizes.seq_len, ops.device) if sizes.causal else None

    def make_inputs() -> tuple[Tensor, ...]:
        x = torch.randn(sizes.batch, sizes.seq_len, sizes.hidden_dim, device=ops.device)
        heads = (sizes.batch, sizes.heads, sizes.seq_len, sizes.head_dim)
        return x, *(torch.randn(heads, device=ops.device) for _ in range(3))

    def torch_layer(x: Tensor, need_weights: bool) -> Tensor:
        return module(x, x, x, attn_mask=hidden, is_causal=sizes.causal, need_weights=need_weights)[0]

    peers = {
        "layer": lambda x, query, key, value: layer(x),
        "torch": lambda x, query, key, value: torch_layer(x, need_weights=False),
        "torch with weights": lambda x, query, key, value: torch_layer(x, need_weights=True),
        "kernel": lambda x, query, key, value: ops.flash_attention(query, key, value, sizes.causal),
    }
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(not sizes.causal)
    try:
        with float32_precision("highest"), torch.no_grad():
            timings = measure(peers, make_inputs, rounds, stopwatch=stopwatch)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    return LayerSpeed(sizes, *timings.values())


def table(measured: Sequence[LayerSpeed], matmul_rate: float) -> Table:
    """A row per configuration; matmul_rate: operations per second of a float32 GEMM, for the share."""
    result = Table(title="speed, float32; ms are medians", title_justify="left")
    for number, (column, _) in enumerate(_COLUMNS):
        result.add_column(column, justify="right" if number else "left")
    for one in measured:
        result.add_row(*(escape(cell) for cell in _cells(one, matmul_rate)))
    return result


_COLUMNS = (
    ("batch, tokens, hidden, heads", lambda one, rate: one.configuration.name),
    ("yours, ms", lambda one, rate: f"{1e3 * one.layer.seconds:.3f}"),
    ("torch, ms", lambda one, rate: f"{1e3 * one.torch_layer.seconds:.3f}"),
    ("weights, ms", lambda one, rate: f"{1e3 * one.torch_with_weights.seconds:.3f}"),
    ("speedup", lambda one, rate: f"{one.speedup:.2f} x"),
    ("kernel TFLOP/s", lambda one, rate: f"{one.kernel_rate / 1e12:.1f}"),
    ("of matmul", lambda one, rate: f"{one.kernel_rate / rate:.0%}"),
    ("points", lambda one, rate: f"{points_for(one.speedup):g}/{POINTS / len(CONFIGURATIONS):g}"),
)


def _cells(one: LayerSpeed, matmul_rate: float) -> list[str]:
    return [cell(one, matmul_rate) for _, cell in _COLUMNS]


def block(measured: Sequence[LayerSpeed], matmul_rate: float, command: str) -> results.Block:
    """The same for Results.md."""
    return results.Block(
        command,
        report.machine(),
        [column for column, _ in _COLUMNS],
        [_cells(one, matmul_rate) for one in measured],
        [
            "float32, medians; speedup over torch.nn.MultiheadAttention with the same weights, eval(), "
            "need_weights=False. kernel: the operator alone, as a share of a measured float32 matmul, "
            f"{matmul_rate / 1e12:.1f} TFLOP/s."
        ],
    )


def run(test_run: TestRun) -> list[Earned]:
    """Checks and times the four configurations, prints the table, and writes it into Results.md with --report."""
    console, ops, options = test_run.console, test_run.ops, test_run.options
    for configuration in CONFIGURATIONS:
        verdict = judge_layer(configuration, ops, options.seed)
        if not verdict.ok:
            why = f"the layer is not timed: {configuration.name}: {verdict.status}"
            return [Earned("speed", 0.0, [why, *verdict.diagnosis])]
    matmul_rate = measure_limits(matmul=("float32",)).matmul["float32"]
    measured = [measure_layer(configuration, ops) for configuration in CONFIGURATIONS]
    console.print(table(measured, matmul_rate))
    say(
        console,
        f"a configuration earns {points_for(FULL_FROM):g} points from {FULL_FROM:g} x and {points_for(HALF_FROM):g} "
        f"from {HALF_FROM:g} x",
    )
    problems = []
    if options.report:
        problems = results.try_report(console, BLOCK, block(measured, matmul_rate, test_run.command))
    return [Earned("speed", sum(points_for(one.speedup) for one in measured), problems)]


SPEED = Measurement(
    {"speed": "only measure the speed (on a GPU)"}, run, {"speed": POINTS}, needs_gpu=True, reports=True
)

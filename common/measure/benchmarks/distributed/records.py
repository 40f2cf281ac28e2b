"""Setting, Record, and their output: a table, ratios compared with the goals, JSON."""

from __future__ import annotations

import datetime
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.table import Table

from common.measure import report

PASSES = {"forward": 1.0, "training": 3.5}  # forward and backward -> operations, in units of the forward pass
LABELS = {
    "ring": "ring",
    "ulysses": "ulysses",
    "context_parallel": "context_parallel, all-gather",
    "context_parallel_alltoall": "context_parallel, all-to-all",
    "ulysses_cudnn": "Ulysses + cuDNN",
    "one": "one GPU, ours",
    "one_cudnn": "one GPU, cuDNN",
    "each": "each GPU the whole, ours",
}
OURS, PEERS = ("ring", "ulysses"), ("context_parallel", "context_parallel_alltoall")


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    tokens: int
    causal: bool
    heads: int = 16
    head_dim: int = 128

    @property
    def name(self) -> str:
        """ "64k causal" """
        size = f"{self.tokens // 1024}k" if self.tokens % 1024 == 0 else f"{self.tokens:,}"
        return f"{size} {'causal' if self.causal else 'full'}"

    def operations(self, passes: str) -> float:
        """Operations of the whole problem."""
        return PASSES[passes] * 4 * self.heads * self.tokens**2 * self.head_dim / (2 if self.causal else 1)


DEFAULT = tuple(Setting(*one) for one in ((2**14, True), (2**15, True), (2**16, True), (2**16, False)))


@dataclass(frozen=True)
class Record:
    """The times of one version in one setting.

    Attributes:
        passes: a key of PASSES.
        version: a key of LABELS.
        runs: seconds of each run on the slowest rank.
        left_out: why there are no runs.
    """

    setting: Setting
    passes: str
    version: str
    runs: tuple[float, ...] = ()
    left_out: str = ""

    @property
    def seconds(self) -> float | None:
        """The median."""
        return statistics.median(self.runs) if self.runs else None

    @property
    def rate(self) -> float | None:
        """Operations per second of all GPUs together."""
        return self.setting.operations(self.passes) / self.seconds if self.runs else None


def table(records: Sequence[Record], passes: str, ranks: int) -> Table:
    """A row per setting, a column per version: ms (total TFLOP/s)."""
    chosen = [one for one in records if one.passes == passes]
    names = list(dict.fromkeys(one.version for one in chosen))
    title = "forward" if passes == "forward" else "forward and backward"
    shown = Table(title=f"{title}, {ranks} GPUs: ms (TFLOP/s of the whole)")
    shown.add_column("tokens")
    for name in names:
        shown.add_column(LABELS[name], justify="right")
    for setting in dict.fromkeys(one.setting for one in chosen):
        of_version = {one.version: one for one in chosen if one.setting == setting}
        shown.add_row(setting.name, *(_cell(of_version.get(name)) for name in names))
    return shown


def _cell(record: Record | None) -> str:
    if record is None or not record.runs:
        return "-"
    return f"{record.seconds * 1e3:.3g} ({record.rate / 1e12:,.0f})"


def goals(records: Sequence[Record]) -> list[str]:
    """Our faster method compared with PyTorch's faster one and with our kernel on one GPU, and the targets.

    1.1 x context_parallel at 32k tokens and more; forward 1.9 x one GPU at 64k and more, 1.5 x at 16k causal.
    """
    said = []
    for passes in PASSES:
        for setting in dict.fromkeys(one.setting for one in records if one.passes == passes):

            def fastest(names: Sequence[str], setting=setting, passes=passes) -> Record | None:
                of = [one for one in records if (one.setting, one.passes) == (setting, passes) and one.runs]
                of = [one for one in of if one.version in names]
                return min(of, key=lambda one: one.seconds, default=None)

            best = fastest(OURS)
            if best is None:
                continue
            for names, least in ((PEERS, _of_peers(setting)), (("one",), _of_one(setting, passes))):
                if other := fastest(names):
                    times = other.seconds / best.seconds
                    goal = f", goal {least}: {'met' if times >= least else 'MISSED'}" if least else ""
                    said.append(
                        f"{setting.name}, {passes}: {best.version} is {times:.2f} x {LABELS[other.version]}{goal}"
                    )
    return said


def _of_peers(setting: Setting) -> float:
    """The target speedup over context_parallel; 0: none."""
    return 1.1 if setting.tokens >= 2**15 else 0


def _of_one(setting: Setting, passes: str) -> float:
    """The target speedup over our kernel on one GPU."""
    if passes != "forward":
        return 0
    return 1.9 if setting.tokens >= 2**16 else 1.5 if (setting.tokens, setting.causal) == (2**14, True) else 0


def to_json(records: Sequence[Record], command: str, ranks: int, facts: dict) -> str:
    """{"machine", "date", "command", "ranks", "results": [...], ...facts}: seconds, bytes, operations."""
    results = [
        {
            "setting": asdict(one.setting) | {"name": one.setting.name},
            "pass": one.passes,
            "version": one.version,
            "median_seconds": one.seconds,
            "work": one.setting.operations(one.passes),
            "work_per_second": one.rate,
            "runs": list(one.runs),
            "left_out": one.left_out,
        }
        for one in records
    ]
    head = {"machine": report.machine(), "date": datetime.date.today().isoformat(), "command": command, "ranks": ranks}
    return json.dumps(head | {"results": results} | facts, indent=1) + "\n"

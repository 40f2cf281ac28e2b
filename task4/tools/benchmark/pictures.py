"""Draws what `python -m task4.benchmark` measured: latency, throughput, speedup, memory and a roofline.

draw(records, limits, machine, folder)     -> the files written; needs matplotlib (ImportError without it)

Each picture is of one dtype and one pass; its panels are head_dim x mask, and a version has one colour in all of them.
The course's versions have solid lines, PyTorch's dashed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from common.measure.limits import Limits
from task4.tools.benchmark.peers import PEERS
from task4.tools.benchmark.runs import Record

DPI = 130
TERA = 1e12
STYLES = {  # colour, marker
    "naive": ("0.65", "v"),
    "tiled": ("0.35", "^"),
    "yours": ("#17becf", "*"),
    "taught": ("#2ca02c", "s"),
    "ffma": ("#1f77b4", "o"),
    "3xfp16": ("#d62728", "D"),
    "mma": ("#d62728", "o"),
    "flash": ("#9467bd", "x"),
    "cudnn": ("#8c564b", "+"),
    "efficient": ("#e377c2", "d"),
    "math": ("#bcbd22", "P"),
}
# What a version that stores the scores moves beside its tensors: scores written, read by the softmax, which writes the
# weights, which the last product reads
PASSES_OVER_SCORES = 4


def draw(records: Sequence[Record], limits: Limits, machine: Mapping[str, str], folder: Path) -> list[Path]:
    """Writes <dtype>_<pass>_<picture>.png for every dtype and pass among the records."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for dtype, direction in dict.fromkeys((one.problem.dtype, one.problem.direction) for one in records):
        chosen = [one for one in records if (one.problem.dtype, one.problem.direction) == (dtype, direction)]
        if not any(one.timing for one in chosen):
            continue
        for name, picture in PICTURES.items():
            if name == "speedup" and not _baseline(chosen):
                continue
            file = folder / f"{dtype}_{direction}_{name}.png"
            picture(chosen, limits, f"{direction}, {dtype}, {machine.get('gpu', 'unknown GPU')}", file)
            files.append(file)
    return files


def matmul_limits(dtype: str, limits: Limits) -> list[tuple[str, float]]:
    """The measured matrix products that a dtype's kernels are compared with: (name, operations per second) of each."""
    if dtype != "fp32":
        return [("matmul, bfloat16", limits.matmul["bfloat16"])]
    return [
        ("matmul, float32", limits.matmul["float32"]),
        ("a third of matmul, bfloat16", limits.matmul["bfloat16"] / 3),
    ]


def _baseline(records: Sequence[Record]) -> str:
    """What speedups are over: the naive version if it was timed, else PyTorch's math backend, else nothing."""
    timed = {one.peer for one in records if one.timing}
    return next((name for name in ("naive", "math") if name in timed), "")


# ---- the pictures


def _latency(records: Sequence[Record], limits: Limits, what: str, file: Path) -> None:
    def panel(axes, of_panel: Sequence[Record]) -> None:
        _lines(axes, of_panel, lambda one: one.timing and 1e3 * one.timing.seconds)
        axes.set_yscale("log")

    _picture(records, f"Latency: {what}", "ms", panel, file)


def _throughput(records: Sequence[Record], limits: Limits, what: str, file: Path) -> None:
    best = max(one.rate or 0.0 for one in records)
    guides = matmul_limits(records[0].problem.dtype, limits)
    guides = [(name, rate) for name, rate in guides if rate < 1.6 * best]  # farther away they would squeeze the lines
    top = 1.08 * max([best, *(rate for _, rate in guides)]) / TERA

    def panel(axes, of_panel: Sequence[Record]) -> None:
        _lines(axes, of_panel, lambda one: one.rate and one.rate / TERA)
        for name, rate in guides:
            _guide(axes, rate / TERA, f"{name}: {rate / TERA:.0f}")
        axes.set_ylim(0, top)

    _picture(records, f"Throughput: {what}", "TFLOP/s", panel, file)


def _speedup(records: Sequence[Record], limits: Limits, what: str, file: Path) -> None:
    base = _baseline(records)
    seconds = {one.problem: one.timing.seconds for one in records if one.peer == base and one.timing}

    def speedup(one: Record) -> float | None:
        there = one.timing and one.problem in seconds
        return seconds[one.problem] / one.timing.seconds if there else None

    def panel(axes, of_panel: Sequence[Record]) -> None:
        _lines(axes, of_panel, speedup)
        axes.set_yscale("log")

    _picture(records, f"Speedup over {PEERS[base].label}: {what}", "times faster", panel, file)


def _memory(records: Sequence[Record], limits: Limits, what: str, file: Path) -> None:
    def panel(axes, of_panel: Sequence[Record]) -> None:
        _lines(axes, of_panel, lambda one: one.memory and one.memory / 2**20)
        problems = sorted({one.problem for one in of_panel}, key=lambda problem: problem.seq_len)
        lengths = [problem.seq_len for problem in problems]
        for sizes, style, label in (
            ([problem.scores_bytes for problem in problems], ":", "scores, S x S in float32: O(S²)"),
            ([problem.tensor_bytes for problem in problems], "-.", "one tensor, S x head_dim: O(S)"),
        ):
            axes.plot(lengths, [size / 2**20 for size in sizes], style, color="0.2", linewidth=1.2, label=label)
        axes.set_yscale("log")

    _picture(records, f"Peak memory beside the inputs, 16,384 tokens in all: {what}", "MiB", panel, file)


def _roofline(records: Sequence[Record], limits: Limits, what: str, file: Path) -> None:
    roofs = [(name, rate / TERA) for name, rate in matmul_limits(records[0].problem.dtype, limits)]
    highest, copy = max(rate for _, rate in roofs), limits.copy / TERA

    def panel(axes, of_panel: Sequence[Record]) -> None:
        for version, alike in _by_version(of_panel).items():
            timed = [one for one in alike if one.rate]
            at = [one.problem.flops / moved_bytes(one) for one in timed]
            _plot(axes, version, at, [one.rate / TERA for one in timed])
        axes.set(xscale="log", yscale="log")
        left, right = axes.get_xlim()
        left, right = min(left, 0.3 * highest / copy), max(right, 3 * highest / copy)
        axes.plot([left, highest / copy], [left * copy, highest], color="0.3", linewidth=1.3)
        for name, rate in roofs:
            axes.plot([rate / copy, right], [rate, rate], color="0.3", linewidth=1.3)
            axes.text(left, 1.06 * rate, f" {name}: {rate:.0f}", ha="left", va="bottom", fontsize=8)
        axes.set_xlim(left, right)
        axes.set_ylim(top=2 * highest)
        slope = f"slope: copy, {copy:.1f} TB/s"
        axes.text(0.98, 0.03, slope, transform=axes.transAxes, fontsize=8, ha="right", va="bottom")

    title = f"Roofline, bytes counted as if each were moved once: {what}"
    _picture(records, title, "TFLOP/s", panel, file, "operations per byte")


PICTURES: dict[str, Callable[[Sequence[Record], Limits, str, Path], None]] = {
    "latency": _latency,
    "throughput": _throughput,
    "speedup": _speedup,
    "memory": _memory,
    "roofline": _roofline,
}


def moved_bytes(one: Record) -> float:
    """Bytes that have to be moved at least: each tensor once; scores, where they are stored, four times."""
    stores_scores = one.problem.direction in PEERS[one.peer].score_buffers
    return one.problem.least_bytes + (PASSES_OVER_SCORES * one.problem.scores_bytes if stores_scores else 0)


# ---- what they have in common


def _picture(
    records: Sequence[Record],
    title: str,
    ylabel: str,
    panel: Callable[..., None],
    file: Path,
    xlabel: str = "tokens per sequence",
) -> None:
    """A panel for each head_dim (rows) and mask (columns); one legend for all."""
    from matplotlib import pyplot

    head_dims = sorted({one.problem.head_dim for one in records})
    masks = sorted({one.problem.causal for one in records})
    size = (4.2 * len(masks) + 1.9, 3.2 * len(head_dims) + 0.5)
    figure, grid = pyplot.subplots(
        len(head_dims), len(masks), figsize=size, layout="constrained", sharey=True, squeeze=False
    )
    handles: dict[str, object] = {}
    for row, head_dim in zip(grid, head_dims, strict=True):
        for axes, causal in zip(row, masks, strict=True):
            of_panel = [one for one in records if (one.problem.head_dim, one.problem.causal) == (head_dim, causal)]
            panel(axes, of_panel)
            if xlabel.startswith("tokens"):
                lengths = sorted({one.problem.seq_len for one in of_panel})
                axes.set_xscale("log", base=2)
                axes.set_xticks(lengths, labels=[_short(length) for length in lengths])
                axes.minorticks_off()
            axes.set_title(f"head_dim {head_dim}, {'causal' if causal else 'no mask'}", loc="left", fontsize=10)
            axes.grid(which="major", color="0.9", linewidth=0.6)
            axes.set_axisbelow(True)
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
    for axes in grid[-1]:
        axes.set_xlabel(xlabel)
    for row in grid:
        row[0].set_ylabel(ylabel)
    figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize=11)
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize=9, frameon=False)
    figure.savefig(file, dpi=DPI)
    pyplot.close(figure)


def _by_version(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Those of each version, by length; in the order of PEERS."""
    ordered = sorted(records, key=lambda one: one.problem.seq_len)
    found = {name: [one for one in ordered if one.peer == name] for name in PEERS}
    return {name: alike for name, alike in found.items() if alike}


def _lines(axes, records: Sequence[Record], value: Callable[[Record], float | None]) -> None:
    """A line for each version through its values; where there is none the line has a gap."""
    for version, alike in _by_version(records).items():
        values = [value(one) for one in alike]
        if any(values):
            lengths = [one.problem.seq_len for one in alike]
            _plot(axes, version, lengths, [float("nan") if one is None else one for one in values])


def _plot(axes, version: str, xs: Sequence[float], ys: Sequence[float]) -> None:
    colour, marker = STYLES[version]
    style = "-" if PEERS[version].kernels else "--"
    marks = {"marker": marker, "markersize": 6, "markerfacecolor": "none"}  # what lies below stays visible
    axes.plot(xs, ys, style, color=colour, label=PEERS[version].label, linewidth=1.5, **marks)


def _guide(axes, height: float, text: str) -> None:
    axes.axhline(height, color="0.4", linewidth=1.0, linestyle=":")
    axes.text(0.01, height, text, transform=axes.get_yaxis_transform(), fontsize=8, va="bottom")


def _short(length: int) -> str:
    """512, 1k, 16k."""
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)

"""Plots of a profile: the bank conflicts of the worst shared memory line, and the roofline.

draw(kernels, gpu, folder)     -> the files written
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from common.console.drawing import pyplot, save
from common.inspect.profile.model import BANKS, LANES, KernelProfile, LineTraffic
from common.inspect.profile.remarks import avoidable, line_passes
from common.inspect.profile.report import shortened, size_of
from common.inspect.profile.roofline import bounds, leaves_most_idle
from common.measure.gpus import GpuSpec

MOST_TICKS = 11  # on the color bar
TERA = 1e12


def draw(kernels: Sequence[KernelProfile], gpu: GpuSpec, folder: Path) -> list[Path]:
    """Writes bank_conflicts.png and roofline.png, if there is data for them."""
    files = []
    if worst := worst_shared_line(kernels):
        files.append(_bank_conflicts(*worst, folder / "bank_conflicts.png"))
    placed = [kernel for kernel in kernels if kernel.intensity and kernel.flops]
    if placed:
        files.append(_roofline(placed, gpu, folder / "roofline.png"))
    return files


# ---- bank conflicts


def worst_shared_line(kernels: Sequence[KernelProfile]) -> tuple[KernelProfile, LineTraffic] | None:
    """The shared memory line with the most excess passes; if there are none, the one with the most passes."""
    lines = [
        (kernel, line) for kernel in kernels for line in kernel.lines if line.space == "shared" and any(line.offsets)
    ]
    return max(lines, key=lambda one: (avoidable(one[1]), one[1].transactions), default=None)


def _bank_conflicts(kernel: KernelProfile, line: LineTraffic, file: Path) -> Path:
    """Plots lanes against banks: a cell is a word requested by a lane, its color the pass that serves it."""
    import numpy
    from matplotlib.colors import BoundaryNorm

    served = line_passes(line.offsets, line.bytes)
    count = 1 + max(number for _, _, number in served)
    cells = numpy.full((LANES, BANKS), numpy.nan)
    for lane, bank, number in served:
        cells[lane, bank] = number + 1
    figure, axes = pyplot().subplots(figsize=(7.6, 7.4), layout="constrained")
    colors = pyplot().get_cmap("viridis", max(count, 2))
    norm = BoundaryNorm([0.5 + i for i in range(max(count, 2) + 1)], max(count, 2))
    drawn = axes.pcolormesh(cells, cmap=colors, norm=norm, edgecolors="0.88", linewidth=0.5)
    axes.set_facecolor("0.97")
    axes.set(xlim=(0, BANKS), ylim=(LANES, 0), xlabel="bank (address / 4 % 32)", ylabel="lane", aspect="equal")
    ticks = [*range(0, BANKS, 4), BANKS - 1]
    axes.set_xticks([tick + 0.5 for tick in ticks], labels=map(str, ticks))
    axes.set_yticks([tick + 0.5 for tick in ticks], labels=map(str, ticks))
    bar = figure.colorbar(drawn, ax=axes, label="served in pass", shrink=0.75, drawedges=count <= LANES)
    bar.set_ticks(sorted({1 + round(i * (count - 1) / (MOST_TICKS - 1)) for i in range(MOST_TICKS)}))
    bar.minorticks_off()
    passes = "one pass: no conflict" if count == 1 else f"{count} passes over the banks"
    where = line.place.shown if line.place else "unknown line"
    text = line.place.text if line.place else ""
    figure.suptitle(
        f"{kernel.kernel}: a warp's {line.action} of {line.bytes} bytes per lane takes {passes}\n"
        f"{where}\n{shortened(text, 82)}",
        x=0.01,
        horizontalalignment="left",
        fontsize=9,
        parse_math=False,
    )
    return save(figure, file)


# ---- roofline


def _roofline(kernels: Sequence[KernelProfile], gpu: GpuSpec, file: Path) -> Path:
    """Plots operations per second against operations per byte of DRAM traffic, with the roofs above the kernels."""
    figure, axes = pyplot().subplots(figsize=(9.0, 6.5), layout="constrained")
    intensities = [kernel.intensity or 0.0 for kernel in kernels]
    rates = [rate_of(kernel, gpu) / TERA for kernel in kernels]
    left, right = min(0.1, *(0.5 * x for x in intensities)), max(1000.0, *(2 * x for x in intensities))
    bandwidth = gpu.bandwidth / TERA
    for name, rate, style in roofs_of(gpu):
        axes.plot([rate / bandwidth, right], [rate, rate], style, color="0.5", linewidth=1.4)
        axes.text(0.97 * right, 1.06 * rate, f"{name} {rate:.3g} TFLOP/s", ha="right", va="bottom", fontsize=9)
    corner = max(rate for _, rate, _ in roofs_of(gpu)) / bandwidth
    axes.plot([left, corner], [left * bandwidth, corner * bandwidth], "-", color="0.5", linewidth=1.4)
    at_one_place: dict[tuple[int, int], list[int]] = {}
    for number, (kernel, intensity, rate) in enumerate(zip(kernels, intensities, rates, strict=True), 1):
        limit, full = bounds(kernel, gpu)[0].resource, kernel.measured_seconds or not leaves_most_idle(kernel, gpu)
        if not full:  # below the roof rather than on it
            limit = f"the grid, {kernel.blocks} of {gpu.sms} SMs (below this mark)"
        label = f"{number}  {kernel.kernel} {size_of(kernel.grid)}: {limit}"
        form = {"marker": "o"} if full else {"marker": "v", "markerfacecolor": "none"}
        axes.plot([intensity], [rate], linestyle="none", markersize=8, label=label, **form)
        at_one_place.setdefault((round(8 * math.log2(intensity)), round(8 * math.log2(rate))), []).append(number)
    for numbers in at_one_place.values():
        first = numbers[0] - 1
        axes.annotate(
            ", ".join(map(str, numbers)),
            (intensities[first], rates[first]),
            textcoords="offset points",
            xytext=(6, -11),
            fontsize=9,
        )
    lowest = 0.3 * min(*rates, left * bandwidth)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(lowest, 3 * corner * bandwidth))
    axes.set(xlabel="operations per byte of DRAM traffic", ylabel="TFLOP/s")
    measured = any(kernel.measured_seconds for kernel in kernels)
    what = "measured" if measured else "estimate: at most so fast, and the resource that limits it"
    axes.set_title(f"Roofline of {gpu.name} ({what})", loc="left", fontsize=11)
    axes.grid(which="major", alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    legend = axes.legend(loc="lower right", fontsize=9, title="kernel (grid): limited by", title_fontsize=9)
    legend.get_title().set_horizontalalignment("left")
    _label_slope(figure, axes, left, bandwidth, f"DRAM {gpu.bandwidth / 1e9:,.0f} GB/s")
    return save(figure, file)


def roofs_of(gpu: GpuSpec) -> list[tuple[str, float, str]]:
    """(name, TFLOP/s, line style); tf32 only if it differs from the float32 line."""
    roofs = [("float32", gpu.fp32 / TERA, "-"), ("fp16 tensor", gpu.fp16_tensor / TERA, "--")]
    if gpu.tf32_tensor and gpu.tf32_tensor > 1.2 * gpu.fp32:
        roofs.append(("tf32 tensor", gpu.tf32_tensor / TERA, ":"))
    return roofs


def _label_slope(figure, axes, left: float, bandwidth: float, text: str) -> None:
    """Labels the DRAM line along its slope, whose angle is known once the axes are laid out."""
    figure.canvas.draw()
    ends = axes.transData.transform([(left, left * bandwidth), (2 * left, 2 * left * bandwidth)])
    run, rise = ends[1] - ends[0]
    at = 1.4 * left
    axes.text(
        at,
        1.15 * at * bandwidth,
        text,
        rotation=math.degrees(math.atan2(rise, run)),
        rotation_mode="anchor",
        fontsize=9,
    )


def rate_of(kernel: KernelProfile, gpu: GpuSpec) -> float:
    """Operations per second: measured, or the maximum allowed by the longest bound."""
    return (kernel.flops or 0) / (kernel.measured_seconds or bounds(kernel, gpu)[0].seconds)

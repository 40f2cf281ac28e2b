"""Prints profiles: a table of source lines, worst first, totals, occupancy and the roofline estimate.

print_kernel(console, kernel, gpu)     one kernel
print_legend(console, gpu)             explains the terms and numbers, once below all kernels
"""

from __future__ import annotations

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from common.console.terminal import say
from common.console.words import counted
from common.inspect.profile.model import KernelProfile, LineTraffic
from common.inspect.profile.remarks import avoidable, remark, worst_first
from common.inspect.profile.roofline import bounds, leaves_most_idle
from common.inspect.source_lines import Place
from common.measure.gpus import GpuSpec

MOST_LINES = 14  # in a kernel's table
COLUMN_GAP = 3  # characters between two columns
LEAST_SOURCE = 16  # minimum width of a source line
MOST_ADVICE = 4  # sentences below the table
NEGLIGIBLE = 0.02  # fraction of a kernel's traffic time below which there is no sentence


def number(value: float) -> str:
    """ "1,234,567" up to a million, then "12.3 M", "4.56 G"."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:,.0f}"


def amount(bytes_: float) -> str:
    """ "640 bytes", "12.5 KB", "3.20 MB" (powers of ten)."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if bytes_ >= size:
            return f"{bytes_ / size:.3g} {unit}"
    return f"{bytes_:.0f} bytes"


def duration(seconds: float) -> str:
    """ "12.3 us", "450 ns"."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}"
    return "under 1 ns"


def size_of(values: tuple[int, int, int]) -> str:
    """A grid or block: "(32, 8)", without trailing ones."""
    kept = list(values)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return f"({', '.join(map(str, kept))})"


def line_number(place: Place | None) -> str:
    """ "126", or "126 < 209" for a function called from line 209."""
    return " < ".join(str(each.line) for each in (place, *place.callers)) if place else "?"


def print_kernel(console: Console, kernel: KernelProfile, gpu: GpuSpec) -> None:
    """Prints everything about one kernel."""
    launched = f", launched at {kernel.launch.shown}" if kernel.launch else ""
    times = "" if kernel.launches == 1 else f", {kernel.launches} launches"
    console.print(
        f"\n[bold]{escape(kernel.kernel)}[/]  grid {size_of(kernel.grid)}, block {size_of(kernel.block)}"
        f"{times}{escape(launched)}",
        highlight=False,
    )
    lines = worst_first(kernel.lines, gpu)
    if lines:
        console.print(_table(lines, console.width))
        _print_advice(console, lines, gpu)
    totals = Table.grid(padding=(0, 2))
    for label, text in facts_of(kernel, gpu):
        totals.add_row(label, text)
    console.print(Padding(totals, (0, 0, 0, 2)), highlight=False)


def facts_of(kernel: KernelProfile, gpu: GpuSpec) -> list[tuple[str, str]]:
    """The facts below the table as (label, text); the text may contain rich markup."""
    facts = (
        ("memory", _traffic(kernel)),
        ("arithmetic", _arithmetic(kernel)),
        ("occupancy", _occupancy(kernel, gpu)),
        ("grid", _grid(kernel, gpu)),
        *_estimate(kernel, gpu),
    )
    return [(label, text) for label, text in facts if text]


def _room_for_source(headings: list[str], rows: list[list[str]], width: int, gap: int) -> int:
    widths = [
        max(len(line) for cell in column for line in cell.split("\n")) for column in zip(headings, *rows, strict=True)
    ]
    return width - (sum(widths) - widths[1] + gap * len(widths))


def _table(lines: list[LineTraffic], width: int) -> Table:
    """The table; the source text gets the width left by the other columns. A narrow table omits requests and wraps
    `what`."""
    headings = ["line", "source", "what", "requests", "transactions", "ideal", ""]
    rows = [
        [
            line_number(line.place),
            line.place.text if line.place else "",
            line.what,
            number(line.requests),
            number(line.transactions),
            number(line.ideal),
            remark(line).note,
        ]
        for line in lines[:MOST_LINES]
    ]
    room = _room_for_source(headings, rows, width, COLUMN_GAP)
    if narrow := room < LEAST_SOURCE:
        for row in (headings, *rows):
            del row[3]
            row[2] = row[2].replace(" of ", "\nof ")
        room = _room_for_source(headings, rows, width, COLUMN_GAP - 1)
    source_width = max(LEAST_SOURCE, room)
    table = Table(box=SIMPLE, pad_edge=False, collapse_padding=narrow)
    for heading in headings:
        is_count = heading in ("requests", "transactions", "ideal")
        # the remark may wrap in a narrow table
        table.add_column(heading, no_wrap=bool(heading) or not narrow, justify="right" if is_count else "left")
    for line, row in zip(lines, rows, strict=False):
        row[1] = shortened(row[1], source_width)
        cells = [escape(cell) for cell in row]
        if remark(line).advice:
            cells[-3] = f"[{'red' if line.ratio >= 2 else 'yellow'}]{cells[-3]}[/]"
        table.add_row(*cells)
    if len(lines) > MOST_LINES:
        table.add_row("", f"... and {len(lines) - MOST_LINES} more")
    return table


def shortened(text: str, width: int) -> str:
    """The text, truncated with … to `width`."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _print_advice(console: Console, lines: list[LineTraffic], gpu: GpuSpec) -> None:
    """Prints the remarks' sentences for lines that lose significant time."""
    whole = sum(line.seconds(gpu, line.transactions) for line in lines)
    said: dict[str, list[str]] = {}
    for line in lines:
        advice = remark(line).advice
        if advice and line.seconds(gpu, avoidable(line)) > NEGLIGIBLE * whole:
            said.setdefault(advice, []).append(line_number(line.place))
    for advice, where in list(said.items())[:MOST_ADVICE]:
        say(console, f"line {', '.join(where)}: {advice}", indent=2)
    if said:
        console.print()


def _traffic(kernel: KernelProfile) -> str:
    parts = []
    if kernel.moved_bytes:
        moved = f"global: {amount(kernel.moved_bytes)} moved"
        if kernel.compulsory_bytes:
            again = kernel.moved_bytes / kernel.compulsory_bytes
            moved += f", {amount(kernel.compulsory_bytes)} compulsory ({again:.1f} times as much)"
        parts.append(moved)
    if kernel.dram_bytes is not None:
        parts.append(f"DRAM: {amount(kernel.dram_bytes)} measured")
    if kernel.wavefronts:
        parts.append(f"shared: {number(kernel.wavefronts)} passes (wavefronts)")
    return "; ".join(parts)


def _arithmetic(kernel: KernelProfile) -> str:
    parts = []
    if kernel.operations is None:
        parts.append("floating-point operations not counted (objdump is missing)")
    else:
        parts.append(f"{number(kernel.operations.flops)} float operations")
        if kernel.operations.special:
            parts.append(f"{number(kernel.operations.special)} special functions")
    if kernel.tensor_flops:
        parts.append(f"{number(kernel.tensor_flops)} tensor core operations")
    if kernel.barriers is not None:
        per_block = kernel.barriers / kernel.blocks / kernel.launches
        parts.append(f"{per_block:.3g} barrier{'' if per_block == 1 else 's'} per block")
    return ", ".join(parts)


def _occupancy(kernel: KernelProfile, gpu: GpuSpec) -> str:
    found = kernel.occupancy(gpu)
    block = f"{kernel.threads} threads, {kernel.shared_bytes:,} bytes of shared memory"
    upto = "up to " if kernel.registers_vary else ""
    block += f", {upto}{kernel.registers} registers per thread" if kernel.registers else ", registers unknown"
    if not found.blocks:
        return f"[red]a block ({block}) does not fit on {gpu.name}: not enough {found.limiter}[/]"
    blocks = "1 block" if found.blocks == 1 else f"{found.blocks} blocks"
    return f"{found.fraction:.0%} on {gpu.name}: {blocks} per SM, limited by {found.limiter} (a block: {block})"


def _grid(kernel: KernelProfile, gpu: GpuSpec) -> str:
    """A remark if the grid does not fill the GPU."""
    at_a_time = kernel.occupancy(gpu).blocks * gpu.sms
    if kernel.blocks < gpu.sms:
        return f"{counted(kernel.blocks, 'block')}: {gpu.sms - kernel.blocks} of the {gpu.sms} SMs have nothing to do"
    if at_a_time < kernel.blocks < 8 * at_a_time and kernel.blocks % at_a_time:
        rounds, left = -(-kernel.blocks // at_a_time), kernel.blocks % at_a_time
        return f"{kernel.blocks} blocks, {at_a_time} at a time: {rounds} rounds, and the last one has {left} of them"
    return ""


def _estimate(kernel: KernelProfile, gpu: GpuSpec) -> list[tuple[str, str]]:
    found = bounds(kernel, gpu)
    if not found:
        return []
    times = ", ".join(f"{bound.resource} {duration(bound.seconds)}" for bound in found)
    limited = [found[0].resource]
    if leaves_most_idle(kernel, gpu):
        limited = [f"the grid: {kernel.blocks} of {gpu.sms} SMs have work; the times above assume that all do"]
    if kernel.intensity:
        limited.append(
            f"{kernel.intensity:.3g} operations per byte of DRAM traffic, "
            f"{gpu.name}'s ridge point is {gpu.fp32 / gpu.bandwidth:.3g} (float32)"
        )
    lines = ["; ".join(limited)] if limited[0] == found[0].resource else limited
    text = [("at least", f"{times} (roofline estimate, {gpu.name})"), ("limited by", lines[0])]
    text += [("", line) for line in lines[1:]]
    if kernel.measured_seconds:
        share = found[0].seconds / kernel.measured_seconds
        text.append(("measured", f"{duration(kernel.measured_seconds)}; the longest bound is {share:.0%} of that"))
    return text


def print_legend(console: Console, gpu: GpuSpec, measured: bool = False) -> None:
    """Prints what the columns count and what the estimate ignores."""
    console.print()
    for paragraph in legend_of(gpu, measured):
        say(console, paragraph, "dim")


def legend_of(gpu: GpuSpec, measured: bool = False) -> list[str]:
    """The paragraphs of the legend."""
    text = [
        "request: one instruction of a warp. transactions: sectors of 32 bytes (global memory), passes over the 32 "
        "banks (shared memory). ideal: what the same bytes take at best. 126 < 209: line 126, in a function called "
        "from line 209.",
        "Not a problem: an access of 8 or 16 bytes per lane is served in groups of 16 or 8 lanes, so it takes several "
        "passes without any conflict, even if all lanes want one address (a broadcast). Inactive lanes (averaged over "
        "all requests) are behind a guard or a condition, or the block has fewer than 32 threads.",
        "moved: all sectors, repeats included. compulsory: each sector that a launch touches, once; caches may catch "
        "the rest.",
    ]
    if not measured:
        text.append(
            "float operations: additions, subtractions, multiplications and divisions in the machine code that the C++ "
            "compiler made from the kernel (a multiply-add counts as 2). special functions: calls of expf and its "
            "like, square roots. Comparisons, min, max, conversions and integer arithmetic are not counted."
        )
    text.append(
        f"The roofline is an estimate from these counts and {gpu.name}'s data sheet (common/measure/gpus.py): each "
        "time is that of one resource, with all SMs busy and only the compulsory traffic to DRAM. It leaves out "
        "latency, caches, instruction issue, integer arithmetic, the launch, and idle SMs. A kernel takes longer "
        "than that."
    )
    return text

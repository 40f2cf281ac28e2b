"""The page of --profile and --check: counters and findings next to their source lines.

profile_page(...), check_page(...) -> HTML; the words and numbers are those of the terminal (profile/report.py,
findings/words.py)
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from common.inspect.findings.model import Finding, Group, grouped
from common.inspect.findings.report import who_did
from common.inspect.findings.words import explained, happened
from common.inspect.page.document import document
from common.inspect.page.sources import Sources
from common.inspect.profile.model import SECTOR, KernelProfile, LineTraffic
from common.inspect.profile.pictures import TERA, rate_of, roofs_of
from common.inspect.profile.remarks import avoidable, line_passes, remark, worst_first
from common.inspect.profile.report import duration, facts_of, legend_of, line_number, size_of
from common.inspect.profile.roofline import bounds, leaves_most_idle
from common.measure.gpus import GpuSpec
from common.testing.case import Verdict

SCRIPTS = ("dom.js", "source.js", "pictures.js", "look.js")
STYLES = ("page.css", "look.css")


def profile_page(
    title: str,
    command: str,
    found: Sequence[tuple[str, Verdict | None, Sequence[KernelProfile]]],
    gpu: GpuSpec,
    measured: bool = False,
) -> str:
    """The page of a profile.

    Args:
        title, command: what was profiled, and the command that makes the page.
        found: for each case its name, its verdict (None for a program) and its kernels.
        gpu: the GPU whose data sheet the estimates use.
        measured: whether the kernels ran on a GPU.
    """
    sources = Sources()
    cases = [
        {**_case(name, verdict), "kernels": [_kernel(kernel, gpu, sources) for kernel in kernels]}
        for name, verdict, kernels in found
    ]
    data = {
        "title": title,
        "command": command,
        "gpu": {"name": gpu.name, "bandwidth": gpu.bandwidth / TERA, "roofs": roofs_of(gpu), "measured": measured},
        "cases": cases,
        "findings": [],
        "legend": legend_of(gpu, measured),
        **sources.data(),
    }
    return document(title, SCRIPTS, STYLES, data)


def check_page(
    title: str, command: str, verdicts: Sequence[tuple[str, Verdict]], found: Sequence[tuple[str, Sequence[Finding]]]
) -> str:
    """The page of a check.

    Args:
        title, command: what was checked, and the command that makes the page.
        verdicts: name and verdict of each case that ran.
        found: findings by case; similar ones are shown once.
    """
    sources = Sources()
    data = {
        "title": title,
        "command": command,
        "gpu": None,
        "cases": [{**_case(name, verdict), "kernels": []} for name, verdict in verdicts],
        "findings": [_group(group, sources) for group in grouped(found)],
        "legend": [],
        **sources.data(),
    }
    return document(title, SCRIPTS, STYLES, data)


def _case(name: str, verdict: Verdict | None) -> dict:
    if verdict is None:
        return {"name": name, "shapes": "", "status": "", "says": "", "findings": 0}
    says = verdict.diagnosis[0] if verdict.diagnosis and not verdict.ok else ""
    return {
        "name": name,
        "shapes": verdict.shapes,
        "status": verdict.status,
        "says": says,
        "findings": verdict.findings,
    }


def _group(group: Group, sources: Sources) -> dict:
    """A finding as reported by --check, with its other locations."""
    first = group.first
    accesses = [
        {"who": who_did(first, access), "place": sources.number(access.place), "where": _where(access.place)}
        for access in first.in_order
    ]
    if first.launch and not accesses:
        accesses = [{"who": "here", "place": sources.number(first.launch), "where": _where(first.launch)}]
    others = {
        (sources.number(access.place), access.action)
        for finding in group.findings
        if finding is not first
        for access in finding.accesses
        if access.place
    }
    return {
        "title": happened(first),
        "harmless": group.is_harmless,
        "count": group.count,
        "explained": explained(first, [one for one in group.findings if one is not first]),
        "accesses": accesses,
        "others": sorted(others),
        "cases": [case for case in group.cases if case],
    }


def _where(place) -> str:
    if place is None:
        return "source line unknown"
    return f"{place.shown} {place.inlined_at}".strip()


def _kernel(kernel: KernelProfile, gpu: GpuSpec, sources: Sources) -> dict:
    limits, occupancy = bounds(kernel, gpu), kernel.occupancy(gpu)
    placed = bool(kernel.intensity and kernel.flops and (limits or kernel.measured_seconds))
    idle = not kernel.measured_seconds and leaves_most_idle(kernel, gpu)
    return {
        "name": kernel.kernel,
        "grid": size_of(kernel.grid),
        "block": size_of(kernel.block),
        "launches": kernel.launches,
        "launched": kernel.launch.shown if kernel.launch else "",
        "facts": [[label, Text.from_markup(text).plain] for label, text in facts_of(kernel, gpu)],
        "bounds": [[bound.resource, bound.amount, bound.seconds, duration(bound.seconds)] for bound in limits],
        "occupancy": {
            "blocks": occupancy.blocks,
            "warps": occupancy.warps,
            "most": gpu.limits.threads // 32,
            "fraction": occupancy.fraction,
            "limiter": occupancy.limiter,
        },
        "point": [kernel.intensity, rate_of(kernel, gpu) / TERA, idle] if placed else None,
        "lines": [_line(line, kernel, gpu, sources) for line in worst_first(kernel.lines, gpu)],
    }


def _line(line: LineTraffic, kernel: KernelProfile, gpu: GpuSpec, sources: Sources) -> dict:
    whole = sum(one.seconds(gpu, one.transactions) for one in kernel.lines) or 1.0
    said = remark(line)
    is_shared = line.space == "shared"
    known = any(offset >= 0 for offset in line.offsets)
    return {
        "place": sources.number(line.place),
        "number": line_number(line.place),
        "what": line.what,
        "bytes": line.bytes,
        "requests": line.requests,
        "transactions": line.transactions,
        "ideal": line.ideal,
        "share": line.seconds(gpu, line.transactions) / whole,
        "avoidable": line.seconds(gpu, avoidable(line)) / whole,
        "note": said.note,
        "advice": said.advice,
        "passes": [list(one) for one in line_passes(line.offsets, line.bytes)] if is_shared and known else [],
        "sectors": _sectors(line) if not is_shared and known else [],
    }


def _sectors(line: LineTraffic) -> list[list[int]]:
    """[lane, sector] pairs of the costliest request, with sectors relative to the lowest one."""
    return [
        [lane, sector]
        for lane, offset in enumerate(line.offsets)
        if offset >= 0
        for sector in range(offset // SECTOR, (offset + line.bytes - 1) // SECTOR + 1)
    ]

"""What every taskN/benchmark.py prints and writes: one table per problem, and the same numbers as JSON.

section = Section("softmax 65536 x 4096", work=bytes, unit="TB/s", timings=measure(...),
                  limit=Limit("copy", limits.copy), peer="torch.softmax")
console.print(table(section))
write_json(path, command, [section])
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from common.measure.timing import Timing

UNITS = {"TB/s": "bytes", "TFLOP/s": "floating-point operations"}
NEEDS_GPU = 2  # exit status


@dataclass(frozen=True)
class Limit:
    """What the machine can do at best: "copy", 4.2e12 per second."""

    name: str
    per_second: float


@dataclass(frozen=True)
class Section:
    """One problem and the timings of everything that solves it.

    Attributes:
        title: the problem and its sizes.
        work: how many bytes must be moved, or operations done, at least; the same for all.
        unit: "TB/s" or "TFLOP/s", what `work` counts.
        timings: name -> Timing.
        limit: what the rates are compared with.
        peer: the name among `timings` that the others are compared with.
        ladder: the timings but for the peer are steps of one development; each is compared with the one before.
    """

    title: str
    work: float
    unit: str
    timings: dict[str, Timing]
    limit: Limit
    peer: str
    ladder: bool = False

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"unit is {self.unit!r}; it must be one of {sorted(UNITS)}")
        if self.peer not in self.timings:
            raise ValueError(f"peer is {self.peer!r}; it must be one of {sorted(self.timings)}")

    def rate(self, name: str) -> float:
        """Work per second."""
        return self.work / self.timings[name].seconds

    def records(self) -> list[dict]:
        """One dictionary per timing, in seconds, bytes and operations."""
        return [
            {
                "problem": self.title,
                "version": name,
                "median_seconds": timing.seconds,
                "fastest_seconds": timing.fastest,
                "slowest_seconds": timing.slowest,
                "runs": len(timing.runs),
                "work": self.work,
                "work_unit": UNITS[self.unit],
                "per_second": self.rate(name),
                "share_of_limit": self.rate(name) / self.limit.per_second,
                "limit": self.limit.name,
                "limit_per_second": self.limit.per_second,
                "times_peer": self.rate(name) / self.rate(self.peer),
                "peer": self.peer,
            }
            for name, timing in self.timings.items()
        ]


def duration(seconds: float) -> str:
    """Three digits: "2.85 ms", "41.3 us", "412 us"."""
    scale, unit = (1e6, "us") if seconds < 0.9995e-3 else (1e3, "ms") if seconds < 0.9995 else (1, "s")
    value = seconds * scale
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"


def _range(timing: Timing) -> str:
    fastest, slowest = duration(timing.fastest), duration(timing.slowest)
    unit = slowest[slowest.index(" ") :]
    return f"{fastest.removesuffix(unit)} .. {slowest}"  # the unit once if it is the same


def table(section: Section) -> Table:
    """The section as a table: median, fastest and slowest run, rate, shares."""
    result = Table(title=escape(section.title), title_justify="left")
    result.add_column("version")
    limit = f"of {section.limit.name} ({section.limit.per_second / 1e12:.3g})"
    columns = ["median", "range", section.unit, escape(limit), f"of {escape(section.peer)}"]
    for column in columns + (["step gain"] if section.ladder else []):
        result.add_column(column, justify="right")
    before = None
    for name, timing in section.timings.items():
        rate = section.rate(name)
        cells = [
            duration(timing.seconds),
            _range(timing),
            f"{rate / 1e12:.2f}",
            f"{rate / section.limit.per_second:.0%}",
            f"{rate / section.rate(section.peer):.0%}",
        ]
        if section.ladder:
            cells.append(f"{rate / before:.2f} x" if before and name != section.peer else "")
        result.add_row(escape(name), *cells)
        before = rate
    return result


def machine() -> dict[str, str]:
    """The GPU and the versions that the numbers belong to."""
    import torch

    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "multiprocessors": str(torch.cuda.get_device_properties().multi_processor_count),
    }


def write_json(path: Path, command: str, sections: Sequence[Section], machine: dict[str, str]) -> None:
    """Writes {"machine", "command", "results": [...]}; see Section.records."""
    results = [record for section in sections for record in section.records()]
    path.write_text(json.dumps({"machine": machine, "command": command, "results": results}, indent=1) + "\n")


def gpu_is_there(console: Console) -> bool:
    """Whether kernels can be built for a GPU and run; if not, says why."""
    from common.compiling import toolchain

    backend = toolchain.choose_backend("auto")
    if backend.name == "cuda":
        return True
    reason = escape(backend.problem or backend.reason)
    console.print(f"A benchmark needs a GPU; the simulator knows nothing about time. Found: {reason}", highlight=False)
    return False

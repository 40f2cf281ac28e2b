"""The page that replays a small launch: replay_page(...) -> HTML.

The data format is documented where the data is made; assets/decode.js reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common.inspect.findings.model import Finding, grouped
from common.inspect.findings.report import who_did
from common.inspect.findings.words import explained, happened
from common.inspect.page.document import document
from common.inspect.page.sources import Sources
from common.inspect.replay.packing import columns_of, types_of
from common.inspect.replay.recording import Launch
from common.inspect.replay.tiles import with_tiles

SCRIPTS = ("dom.js", "source.js", "decode.js", "memory.js", "steps.js", "arrays.js", "flow.js", "words.js", "replay.js")
STYLES = ("page.css", "replay.css")
ALIGNED = 4  # bytes: alignment of a column


def replay_page(title: str, about: str, command: str, launches: Sequence[Launch], findings: Sequence[Finding]) -> str:
    """The page.

    Args:
        title: what is replayed: "softmax: 7 x 31".
        about: the line below it: variant, shapes, verdict.
        command: the command that makes the page.
        launches: launches of one case, in order.
        findings: findings of the checks in it.
    """
    sources, blob = Sources(), bytearray()

    def put(data: bytes) -> list[int]:
        blob.extend(b"\0" * (-len(blob) % ALIGNED))
        at = len(blob)
        blob.extend(data)
        return [at, len(data)]

    described = [_launch(with_tiles(launch), sources, put) for launch in launches]
    told = [_finding(group.first, group.count, sources) for group in grouped([("", findings)]) if not group.is_harmless]
    data = {
        "title": title,
        "about": about,
        "command": command,
        "launches": described,
        "findings": told,
        **sources.data(),
    }
    return document(f"Replay of {title}", SCRIPTS, STYLES, data, bytes(blob))


def _launch(launch: Launch, sources: Sources, put) -> dict:
    types = types_of(launch)
    arrays = [
        {
            "name": array.name if " " not in array.name else _short(array.name),
            "space": array.space,
            "type": kind,
            "size": array.element_bytes,
            "shape": list(array.shape) or [array.bytes // array.element_bytes],
            "bytes": array.bytes,
            "initialized": array.initialized,
            "initial": put(array.initial if array.initialized else b""),
        }
        for array, kind in zip(launch.arrays, types, strict=True)
    ]
    return {
        "kernel": launch.kernel,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "arrays": arrays,
        "entries": [[sources.number(e.place), e.array, e.kind, e.bytes, e.label] for e in launch.entries],
        "segments": [[s.block, s.first, s.end, sources.number(s.at)] for s in launch.segments],
        "columns": {name: put(column) for name, column in columns_of(launch).items()},
    }


def _short(name: str) -> str:
    """ "the 4096 bytes of cudaMalloc at /path/x.cu:12" -> "cudaMalloc at x.cu:12"."""
    path = name.rpartition(" at ")[2]
    return f"cudaMalloc at {Path(path).name}" if path else name


def _finding(finding: Finding, count: int, sources: Sources) -> dict:
    """What happened, both accesses, and the explanation, as in --check."""
    return {
        "kernel": finding.kernel_name,
        "title": happened(finding),
        "count": count,
        "explained": explained(finding),
        "variable": finding.variable,
        "space": finding.space,
        "offset": finding.byte_offset,
        "accesses": [
            {
                "who": who_did(finding, access),
                "place": sources.number(access.place),
                "block": access.block,
                "thread": access.thread,
            }
            for access in finding.in_order
        ],
    }

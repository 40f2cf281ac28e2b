"""Tracks what a build folder was built from by content hash, because ninja compares timestamps only.

    damaged = forget_stale(folder)      deletes products that were modified or whose inputs changed, and the record
    ... ninja runs, and builds what is missing ...
    remember(folder)                    records the current state

A source restored with an old timestamp (unpacked, copied, checked out), an object truncated by a full disk, an empty
library: each triggers a rebuild. If ninja's own files or the saved compiler output have changed, everything is rebuilt.
Headers outside of the checkout, the compiler's and PyTorch's, are compared by time and size.

Builds without ninja store mark_of(file) next to the product.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

from common.compiling import toolchain
from common.console.files import write_whole
from common.console.paths import ROOT, build_root

RECORD = "contents.json"
PRODUCTS = ("*.o", "*.so", "*.pyd")
WORDS = ("build.ninja", ".ninja_log", ".ninja_deps", "warnings.json", "kernels.json")


def forget_stale(folder: Path) -> list[str]:
    """Deletes a build folder's untrustworthy products, which ninja then rebuilds.

    Returns:
        The names of damaged files: those modified since the last build, or the record if it cannot be read.
    """
    products = [file for pattern in PRODUCTS for file in folder.glob(pattern)]
    known = _read(folder / RECORD)
    damaged = [RECORD] if known is None else []
    known = known or {}
    damaged += [name for name in WORDS if name in known and known[name]["is"] != mark_of(folder / name)]
    if damaged:  # nothing here can be trusted
        known = {}
    for name in WORDS:
        if name not in known:
            (folder / name).unlink(missing_ok=True)
    for file in products:
        was = known.get(file.name)
        is_damaged = was is not None and was["is"] != mark_of(file)
        if is_damaged:
            damaged.append(file.name)
        if was is None or is_damaged or any(mark_of(Path(name)) != mark for name, mark in was["from"].items()):
            file.unlink()
    (folder / RECORD).unlink(missing_ok=True)  # an interrupted build leaves nothing trusted
    return damaged


def remember(folder: Path) -> None:
    """Records the products and each object's inputs."""
    made_from = _dependencies(folder)
    record = {}
    for pattern in PRODUCTS:
        for file in folder.glob(pattern):
            inputs = {} if file.suffix != ".o" else made_from.get(file.name)
            if inputs is not None:  # None: ninja has no inputs for it, so it is rebuilt next time
                record[file.name] = {"is": mark_of(file), "from": inputs}
    record |= {name: {"is": mark_of(folder / name), "from": {}} for name in WORDS if (folder / name).exists()}
    write_whole(folder / RECORD, json.dumps(record))


def mark_of(file: Path) -> str:
    """A hash of its content; of time and size for files outside of the checkout and the build folder."""
    try:
        path = file.resolve()
        if path.is_relative_to(ROOT) or path.is_relative_to(build_root()):
            return hashlib.sha256(path.read_bytes()).hexdigest()
        about = path.stat()
        return f"{about.st_mtime_ns} {about.st_size}"
    except OSError:
        return "missing"


def _read(file: Path) -> dict | None:
    """The record; {} if there is none, None if it is invalid."""
    if not file.exists():
        return {}
    try:
        known = json.loads(file.read_text())
        assert all(isinstance(one["is"], str) and isinstance(one["from"], dict) for one in known.values())
        return known
    except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError):
        return None


def _dependencies(folder: Path) -> dict[str, dict[str, str]]:
    """Object -> {input: its mark}, from ninja's dependency log."""
    command = [str(toolchain.find_ninja()), "-t", "deps"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    marks: dict[str, str] = {}
    for line in done.stdout.splitlines():
        if line.startswith(" "):
            name = str(folder / line.strip())
            marks[name] = marks.get(name) or mark_of(Path(name))
            current[name] = marks[name]
        elif ": #deps" in line:
            current = found[line.split(":")[0]] = {}
    return found

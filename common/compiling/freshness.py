"""What a build folder was built from, by content: ninja looks at times alone, and times can lie.

    damaged = forget_stale(folder)      takes away what is not as it was left, or was built from other contents, and the
                                        record of it
    ... ninja runs, and builds what is missing ...
    remember(folder)                    writes down what there is now

A file that comes back with an old time (unpacked, copied, checked out), an object cut short by a full disk, an empty
library: each is rebuilt. So is everything where ninja's own files, or the compilers' last words, are not as they
were left. Headers outside of the checkout, the compiler's and PyTorch's, go by time and size.

What is built without ninja keeps mark_of(file) next to it.
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
    """Deletes the products of a build folder that cannot be trusted; ninja builds them again.

    Returns:
        The names of the files that were damaged: not as the last build had left them, or a record that is none.
    """
    products = [file for pattern in PRODUCTS for file in folder.glob(pattern)]
    known = _read(folder / RECORD)
    damaged = [RECORD] if known is None else []
    known = known or {}
    for file in (folder / name for name in WORDS):
        was = known.get(file.name)
        if was is not None and was["is"] != mark_of(file):
            damaged.append(file.name)
        if was is None or file.name in damaged:
            file.unlink(missing_ok=True)
    if damaged:  # then nothing here can be trusted
        known = {}
        for name in WORDS:
            (folder / name).unlink(missing_ok=True)
    for file in products:
        was = known.get(file.name)
        if (
            was is None
            or was["is"] != mark_of(file)
            or any(mark_of(Path(name)) != mark for name, mark in was["from"].items())
        ):
            if was is not None and was["is"] != mark_of(file):
                damaged.append(file.name)
            file.unlink()
    (folder / RECORD).unlink(missing_ok=True)  # who ends a build in its midst leaves nothing that is trusted
    return damaged


def remember(folder: Path) -> None:
    """Writes down the products, and what each object was built from."""
    made_from = _dependencies(folder)
    record = {}
    for pattern in PRODUCTS:
        for file in folder.glob(pattern):
            inputs = {} if file.suffix != ".o" else made_from.get(file.name)
            if inputs is not None:  # ninja does not know: not remembered, so built again the next time
                record[file.name] = {"is": mark_of(file), "from": inputs}
    record |= {name: {"is": mark_of(folder / name), "from": {}} for name in WORDS if (folder / name).exists()}
    write_whole(folder / RECORD, json.dumps(record))


def mark_of(file: Path) -> str:
    """Of its content; of a file that is neither ours nor built by us, of time and size."""
    try:
        path = file.resolve()
        if path.is_relative_to(ROOT) or path.is_relative_to(build_root()):
            return hashlib.sha256(path.read_bytes()).hexdigest()
        about = path.stat()
        return f"{about.st_mtime_ns} {about.st_size}"
    except OSError:
        return "missing"


def _read(file: Path) -> dict | None:
    """{}: there is none; None: it is no record."""
    if not file.exists():
        return {}
    try:
        known = json.loads(file.read_text())
        assert all(isinstance(one["is"], str) and isinstance(one["from"], dict) for one in known.values())
        return known
    except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError):
        return None


def _dependencies(folder: Path) -> dict[str, dict[str, str]]:
    """Object -> {file: its mark}, as ninja noted it."""
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

"""Objects and libraries by content: what one process on this machine has compiled, no other compiles again.

    made = compile_object(source, flags)       the object's file in the cache, and what the compiler said
    link(objects, flags, library)              whether anything had to be done

An object is identified by the compiler, its flags, the source, and every header that the source includes. Paths in
the checkout and the build folder are relative in the key and in the object (`task2/attention_kernel.cu`; see
local_file), so copies of the checkout, other build folders, and all processes of a test run share the cache. It is
$ATTENTION_CACHE_DIR, `cache` in the folder that $ATTENTION_BUILD_DIR names, or else the user's cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from filelock import FileLock
from rich.console import Console

from common.compiling import toolchain
from common.console.files import write_whole
from common.console.paths import ROOT, build_root, shown_path
from common.console.terminal import say

MOST_BYTES = 2 << 30  # of the cache; beyond that what was not used for longest goes
MOST_VERSIONS = 8  # of one source with the same flags: its headers differ
PRUNED_EVERY = 3600  # seconds


class CompilerFailed(Exception):
    """A compiler or the linker ended with an error; the words are its log."""


@dataclass(frozen=True)
class Made:
    """An object file or a library: where it is, the hash of its contents, and what the compiler printed."""

    path: Path
    digest: str
    log: str


def cache_root() -> Path:
    """Where objects are kept; a folder of the build where the user's own cannot be written."""
    if named := os.environ.get("ATTENTION_CACHE_DIR"):
        return Path(named).resolve()
    if os.environ.get("ATTENTION_BUILD_DIR"):
        return build_root() / "cache"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    folder = home / "attention-assignment"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return folder if os.access(folder, os.W_OK) else build_root() / "cache"
    except OSError:
        return build_root() / "cache"


def compile_object(source: Path, flags: Sequence[str]) -> Made:
    """Compiles a C++ source, unless the cache has what would come of it.

    Args:
        source: the file.
        flags: the compiler's, without -c, -o and those that write dependencies.

    Raises:
        CompilerFailed: it does not compile. ToolchainError: there is no compiler. OSError: nothing can be written.
    """
    compiler = toolchain.host_compiler()
    portable = [_portable(flag) for flag in flags]
    text = _portable(source.read_text(errors="surrogateescape"))
    key = _digest(_mark_of_tool(compiler), *portable, _portable(str(source)), text)
    entry = cache_root() / key[:2] / f"{key}.json"
    if known := _known(entry):
        return known
    with _locked(entry):  # another process may be compiling the same
        if known := _known(entry):
            return known
        unfinished = entry.with_name(f".{key}.{os.getpid()}.{threading.get_ident()}.o")
        dependencies = unfinished.with_suffix(".d")
        command = [compiler, *flags, *_path_maps(), "-MD", "-MF", dependencies, "-c", source, "-o", unfinished]
        try:
            log = _run(command)
            inputs = {_portable(str(one)): _mark_of(one) for one in _dependencies(dependencies, source)}
            return _keep(entry, unfinished, inputs, log)
        finally:
            unfinished.unlink(missing_ok=True)
            dependencies.unlink(missing_ok=True)


def compile_objects(jobs: Iterable[tuple[Path, Sequence[str]]]) -> list[Made]:
    """compile_object of each (source, flags), as many at once as there are cores, the first ones first.

    Raises:
        CompilerFailed: some do not compile; the logs of all that were compiled. The rest: see compile_object.
    """
    jobs = list(jobs)

    def attempt(job: tuple[Path, Sequence[str]]) -> Made | CompilerFailed:
        try:
            return compile_object(*job)
        except CompilerFailed as error:
            return error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = list(pool.map(attempt, jobs))
    if any(isinstance(one, CompilerFailed) for one in made):
        raise CompilerFailed("\n".join(str(one) if isinstance(one, CompilerFailed) else one.log for one in made))
    return made


def link(objects: Sequence[Made], flags: Sequence[str], product: Path) -> bool:
    """Links objects into a library or a program, unless it is what would come of them already.

    A product that is not as it was linked is replaced, and that is said.

    Returns:
        Whether the product is new.

    Raises:
        CompilerFailed: the linker's log.
    """
    compiler = toolchain.host_compiler()
    key = _digest(_mark_of_tool(compiler), *map(_portable, flags), *(one.digest for one in objects))
    entry = cache_root() / key[:2] / f"{key}.json"
    known = _known(entry)
    now, stamp = _file_digest(product) if product.exists() else "", product.with_name(f"{product.name}.sha256")
    if known and now == known.digest:
        return False
    if now and stamp.exists() and stamp.read_text(errors="replace") != now:
        say(Console(stderr=True), f"{shown_path(product)} is not as the last build left it: rebuilt")
    if known is None:
        with _locked(entry):
            known = _known(entry)
            if known is None:
                unfinished = entry.with_name(f".{key}.{os.getpid()}.{threading.get_ident()}.so")
                try:
                    _run([compiler, *(one.path for one in objects), *flags, "-o", unfinished])
                    known = _keep(entry, unfinished, {}, "")
                finally:
                    unfinished.unlink(missing_ok=True)
    product.parent.mkdir(parents=True, exist_ok=True)
    copy = product.with_name(f".{product.name}.{os.getpid()}")
    try:
        shutil.copy(known.path, copy)  # not a link: whoever damages the product leaves the cache whole
        stamp.unlink(missing_ok=True)
        copy.replace(product)
        write_whole(stamp, known.digest)
    finally:
        copy.unlink(missing_ok=True)
    return True


def local_file(name: str) -> str:
    """The file in this checkout or its build folder that a path recorded in an object refers to."""
    path = Path(name)
    if path.is_absolute():
        return name
    parts = path.parts
    return str(build_root().joinpath(*parts[1:]) if parts[:1] == ("build",) else ROOT / path)


# ---- names that hold in any checkout


def _path_maps() -> list[str]:
    """Of two that fit, the compiler takes the last."""
    every = {str(ROOT): ".", f"{ROOT}/": "", f"{build_root()}/": "build/"}
    return [f"-ffile-prefix-map={old}={new}" for old, new in every.items()]


@cache
def _places(build: str) -> tuple[tuple[str, str], ...]:
    return (build, "@build"), (str(ROOT), "@root")


def _portable(text: str) -> str:
    for place, name in _places(str(build_root())):
        text = text.replace(place, name)
    return text


def _local(text: str) -> str:
    for place, name in _places(str(build_root())):
        text = text.replace(name, place)
    return text


# ---- the cache


def _known(entry: Path) -> Made | None:
    """What is kept under a key, if its inputs are as they were and it is whole."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        for version in json.loads(entry.read_text()):
            inputs = version["inputs"]
            if all(_mark_of(Path(_local(name))) == mark for name, mark in inputs.items()):
                product = entry.parent / version["file"]
                if _file_digest(product) != version["digest"]:
                    return None
                os.utime(product)
                return Made(product, version["digest"], _local(version["log"]))
    return None


def _keep(entry: Path, product: Path, inputs: dict[str, str], log: str) -> Made:
    """Moves a product into the cache."""
    digest = _file_digest(product)
    kept = entry.with_name(f"{digest[:32]}{product.suffix}")
    product.replace(kept)
    versions = [{"inputs": inputs, "file": kept.name, "digest": digest, "log": _portable(log)}]
    with contextlib.suppress(OSError, ValueError, TypeError):
        versions += json.loads(entry.read_text())[: MOST_VERSIONS - 1]
    write_whole(entry, json.dumps(versions))
    _prune(cache_root())
    return Made(kept, digest, log)


def _prune(root: Path) -> None:
    """Once an hour: takes away what was not used for longest, if the cache is too large."""
    stamp = root / "pruned"
    with contextlib.suppress(OSError):
        if stamp.exists() and time.time() - stamp.stat().st_mtime < PRUNED_EVERY:
            return
        stamp.touch()
        files = sorted((file.stat().st_mtime, file.stat().st_size, file) for file in root.glob("??/*"))
        size = sum(size for _, size, _ in files)
        for _, bytes_of, file in files:
            if size <= MOST_BYTES:
                break
            file.unlink(missing_ok=True)
            size -= bytes_of


def _locked(entry: Path) -> FileLock:
    entry.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(entry.with_suffix(".lock"))


def _run(command: Sequence[object]) -> str:
    """Runs a compiler; what it printed. Its working directory is the checkout, which the object then names."""
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, errors="replace")
    log = done.stdout + done.stderr
    if done.returncode:
        raise CompilerFailed(log)
    return log


def _dependencies(file: Path, source: Path) -> list[Path]:
    """What a dependency file names, but for the source itself."""
    words = re.findall(r"(?:\\.|[^\s\\])+", file.read_text(errors="surrogateescape").partition(":")[2])
    paths = [Path(re.sub(r"\\(.)", r"\1", word).replace("$$", "$")) for word in words]
    return [path if path.is_absolute() else ROOT / path for path in paths if path != source]


def _mark_of(file: Path) -> str:
    """Of a file of the checkout or the build its contents, of any other its time and size."""
    try:
        if file.is_relative_to(ROOT) or file.is_relative_to(build_root()):
            return _digest(_portable(file.read_text(errors="surrogateescape")))
        about = file.stat()
        return f"{about.st_mtime_ns} {about.st_size}"
    except OSError:
        return "missing"


def _mark_of_tool(tool: Path) -> str:
    about = tool.stat()
    return f"{tool} {about.st_mtime_ns} {about.st_size}"


def _file_digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()

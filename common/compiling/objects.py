"""A content-addressed cache of objects and libraries: nothing is compiled twice on a machine.

    made = compile_object(source, flags)       the object's path in the cache, and the compiler's output
    link(objects, flags, library)              links; returns whether the library is new
    kept_text(key, make)                       a cached generated source

An object's key is the compiler, its flags, the source, and every header that the source includes. Paths in the checkout
and the build folder are relative in the key and in the object (`task2/attention_kernel.cu`; see local_file), so copies
of the checkout, other build folders, and all processes of a test run share the cache. It is in $ATTENTION_CACHE_DIR,
`cache` in the folder $ATTENTION_BUILD_DIR, or else the user's cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType

from filelock import FileLock
from rich.console import Console

from common.compiling import toolchain
from common.console.files import write_whole
from common.console.paths import ROOT, build_root, shown_path
from common.console.terminal import say
from common.simulator import rewriter

# The first header of every rewritten source, and of every binding
BEGINNINGS = {".cu.cpp": rewriter.INCLUDE_DIR / "cuda_runtime.h", "binding.cpp": ROOT / "common/cuda/torch_stable.h"}
MOST_BYTES = 2 << 30  # size limit; the least recently used entries are evicted
MOST_VERSIONS = 8  # per source and flags, for different versions of its headers
PRUNED_EVERY = 3600  # seconds


class CompilerFailed(Exception):
    """A compiler or the linker failed; the message is its log."""


@dataclass(frozen=True)
class Made:
    """A compiler's product: its path, the hash of its contents, the compiler's output, and its inputs."""

    path: Path
    digest: str
    log: str
    inputs: dict[str, str] = field(default_factory=dict)


def cache_root() -> Path:
    """The cache folder; inside the build folder if the user's cache folder is not writable."""
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
    """Compiles a C++ source, unless its object is in the cache.

    Args:
        source: the file.
        flags: compiler flags, without -c, -o and those that write dependencies.

    Raises:
        CompilerFailed: it does not compile. ToolchainError: there is no compiler. OSError: the cache is not writable.
    """
    compiler = toolchain.host_compiler()
    portable = [_portable(flag) for flag in flags]
    text = _portable(source.read_text(errors="surrogateescape"))
    entry = _entry(_mark_of_tool(compiler), *portable, _portable(str(source)), text)

    def make() -> Made:
        unfinished = _unfinished(entry, ".o")
        header = next((one for end, one in BEGINNINGS.items() if source.name.endswith(end)), None)
        precompiled = None
        if header and resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY:  # it needs 80 MB
            with contextlib.suppress(CompilerFailed):  # it only saves time
                precompiled = _precompiled(header, flags)
        if precompiled is None:
            return _compiled(entry, source, flags, ["-c", source], unfinished)
        try:
            what = ["-include", precompiled.path.with_suffix(""), "-c", source]
            return _compiled(entry, source, flags, what, unfinished, precompiled.inputs)
        except CompilerFailed as error:
            if precompiled.path.stem not in str(error):
                raise
            return _compiled(entry, source, flags, ["-c", source], unfinished)  # this compiler cannot use it

    return _cached(entry, make)


def _compiled(
    entry: Path,
    source: Path,
    flags: Sequence[str],
    what: Sequence[object],
    unfinished: Path,
    further: Mapping[str, str] = MappingProxyType({}),
) -> Made:
    """Runs the compiler, and caches its product with the marks of all files that it read and of further inputs."""
    dependencies = unfinished.with_suffix(".d")
    options = [*flags, *_path_maps(), "-MD", "-MF", dependencies]
    try:
        log = _run([toolchain.host_compiler(), *options, *what, "-o", unfinished])
        inputs = {_portable(str(one)): _mark_of(str(one)) for one in _dependencies(dependencies, source)}
        return _keep(entry, unfinished, {**further, **inputs}, log)
    finally:
        unfinished.unlink(missing_ok=True)
        dependencies.unlink(missing_ok=True)


def _precompiled(header: Path, flags: Sequence[str]) -> Made | None:
    """A gcc precompiled header: saves half of a small kernel's compile time, more of a binding's.

    Making it takes longer than one compilation, so the first one with these flags does without. Its paths are relative
    to the checkout, so that all checkouts share it.
    """
    compiler = toolchain.host_compiler()
    if "clang" in str(compiler):
        return None
    level = [flag for flag in flags if flag.startswith("-O")][-1:]  # valid for one level: headers test __OPTIMIZE__
    flags = [*(flag for flag in flags if not flag.startswith(("-I", "-W", "-O"))), *level]  # valid for any -I and -W
    entry = _entry(_mark_of_tool(compiler), "precompiled", header.name, *map(_portable, flags))
    if known := _known(entry, whole=False):
        return known
    first_use = entry.with_suffix(".used")
    if not first_use.exists():
        first_use.parent.mkdir(parents=True, exist_ok=True)
        first_use.touch()
        return None
    what = ["-Icommon/simulator/include", "-x", "c++-header", header.relative_to(ROOT)]
    return _cached(entry, lambda: _compiled(entry, Path(), flags, what, _unfinished(entry, ".gch")), whole=False)


def compile_objects(jobs: Iterable[tuple[Path, Sequence[str]]]) -> list[Made]:
    """compile_object for each (source, flags) in order, in parallel on all cores.

    Raises:
        CompilerFailed: some do not compile; the message has the logs of all. Other errors: see compile_object.
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
    """Links objects into a library or a program, unless it is up to date.

    A library that was modified since it was linked is replaced, with a note.

    Returns:
        Whether the product is new.

    Raises:
        CompilerFailed: the linker's log.
    """
    compiler = toolchain.host_compiler()
    entry = _entry(_mark_of_tool(compiler), *map(_portable, flags), *(one.digest for one in objects))
    known = _known(entry)
    now, stamp = _file_digest(product) if product.exists() else "", product.with_name(f"{product.name}.sha256")
    if known and now == known.digest:
        return False
    if now and stamp.exists() and stamp.read_text(errors="replace") != now:
        say(Console(stderr=True), f"{shown_path(product)} is not as the last build left it: rebuilt")

    def make() -> Made:
        unfinished = _unfinished(entry, ".so")
        try:
            _run([compiler, *(one.path for one in objects), *flags, "-o", unfinished])
            return _keep(entry, unfinished, {}, "")
        finally:
            unfinished.unlink(missing_ok=True)

    known = known or _cached(entry, make)
    product.parent.mkdir(parents=True, exist_ok=True)
    copy = product.with_name(f".{product.name}.{os.getpid()}")
    try:
        shutil.copy(known.path, copy)  # not a hard link: damage to the product must not affect the cache
        stamp.unlink(missing_ok=True)
        copy.replace(product)
        write_whole(stamp, known.digest)
    finally:
        copy.unlink(missing_ok=True)
    return True


_texts: dict[str, str] = {}


def kept_text(key: tuple[str, ...], make: Callable[[], str]) -> str:
    """make()'s result for this key, cached on this machine: a generated source, which may contain paths.

    Args:
        key: everything that the text depends on.
    """
    name = _digest(*map(_portable, key))
    if name not in _texts:
        entry = cache_root() / name[:2] / f"{name}.txt"
        try:
            digest, _, text = entry.read_text(errors="surrogateescape").partition("\n")
            if _digest(text) != digest:
                raise ValueError
            os.utime(entry)
        except (OSError, ValueError):
            text = _portable(make())
            write_whole(entry, f"{_digest(text)}\n{text}")
        _texts[name] = text
    return _local(_texts[name])


def local_file(name: str) -> str:
    """The file in this checkout or its build folder to which a path recorded in an object refers."""
    path = Path(name)
    if path.is_absolute():
        return name
    parts = path.parts
    return str(build_root().joinpath(*parts[1:]) if parts[:1] == ("build",) else ROOT / path)


# ---- paths independent of the checkout


def _path_maps() -> list[str]:
    """Flags that make paths relative. If two match, the compiler takes the last."""
    every = {str(ROOT): ".", f"{ROOT}/": "", f"{build_root()}/": "build/"}
    return [f"-ffile-prefix-map={old}={new}" for old, new in every.items()]


@cache
def _places(build: str) -> tuple[tuple[str, str], ...]:
    return (build, "\1build"), (str(ROOT), "\1root")  # strings that no source contains


def _portable(text: str) -> str:
    for place, name in _places(str(build_root())):
        text = text.replace(place, name)
    return text


def _local(text: str) -> str:
    for place, name in _places(str(build_root())):
        text = text.replace(name, place)
    return text


# ---- the cache


def _known(entry: Path, whole: bool = True) -> Made | None:
    """The cached product of a key, if its inputs are unchanged. `whole`: verify its hash, too (slow if it is large)."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        for version in json.loads(entry.read_text()):
            inputs = version["inputs"]
            if all(_mark_of(_local(name)) == mark for name, mark in inputs.items()):
                product = entry.parent / version["file"]
                if whole and _file_digest(product) != version["digest"]:
                    return None
                os.utime(product)
                return Made(product, version["digest"], _local(version["log"]), inputs)
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
    return Made(kept, digest, log, inputs)


def _prune(root: Path) -> None:
    """Evicts the least recently used entries if the cache is too large; runs once an hour."""
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


def _entry(*parts: str) -> Path:
    """The file for the product of these parts."""
    key = _digest(*parts)
    return cache_root() / key[:2] / f"{key}.json"


def _unfinished(entry: Path, suffix: str) -> Path:
    """Where this thread makes the entry's product."""
    return entry.with_name(f".{entry.stem}.{os.getpid()}.{threading.get_ident()}{suffix}")


def _cached(entry: Path, make: Callable[[], Made], whole: bool = True) -> Made:
    """The cached product, or else make()'s: only one process makes it."""
    if known := _known(entry, whole):
        return known
    entry.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(entry.with_suffix(".lock")):
        return _known(entry, whole) or make()


def _run(command: Sequence[object]) -> str:
    """Runs a compiler and returns its output. The working directory, which objects record, is the checkout."""
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, errors="replace")
    log = done.stdout + done.stderr
    if done.returncode:
        raise CompilerFailed(log)
    return log


def _dependencies(file: Path, source: Path) -> list[Path]:
    """The files that a dependency file lists, without the source itself."""
    words = re.findall(r"(?:\\.|[^\s\\])+", file.read_text(errors="surrogateescape").partition(":")[2])
    paths = [Path(re.sub(r"\\(.)", r"\1", word).replace("$$", "$")) for word in words]
    return [path if path.is_absolute() else ROOT / path for path in paths if path != source]


def _mark_of(file: str) -> str:
    """A hash of a file's contents if it is in the checkout or the build folder, else its time and size."""
    try:
        about = os.stat(file)
    except OSError:
        return "missing"
    return _mark_at(file, str(build_root()), about.st_mtime_ns, about.st_size, about.st_ino)


@lru_cache(4096)  # the sources of a library include the same headers
def _mark_at(name: str, build: str, changed: int, size: int, inode: int) -> str:
    file = Path(name)
    if file.is_relative_to(ROOT) or file.is_relative_to(build):
        return _digest(_portable(file.read_text(errors="surrogateescape")))
    return f"{changed} {size}"


def _mark_of_tool(tool: Path) -> str:
    about = tool.stat()
    return f"{tool} {about.st_mtime_ns} {about.st_size}"


def _file_digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()

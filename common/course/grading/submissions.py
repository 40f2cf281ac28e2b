"""What a student handed in: read_submission(path) -> the files that the manifests name, and nothing else.

A submission is a folder, a .zip, a .tar (also compressed) or a git repository: a .bundle, a bare repository, or an
address to clone from. The tasks' folders may lie anywhere in it, all in the same place. A file that lies there without
its task's folder counts where only one task has a file of that name.
"""

from __future__ import annotations

import os
import stat
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from common.compiling.manifest import read_manifest, tasks

MOST_BYTES = 1 << 20  # of a file
MOST_ENTRIES = 50_000  # of a submission
MOST_UNPACKED = 1 << 29  # bytes that are read of a compressed tar
GIT_SECONDS = 120


@dataclass(frozen=True)
class Submission:
    """What is graded.

    Attributes:
        name: of the folder or the archive.
        files: "task2/attention_kernel.cu" -> its text.
        problems: the same -> why a file is not taken, a sentence.
        other: names of files beside them, the first few: nobody looks at them.
    """

    name: str
    files: dict[str, str]
    problems: dict[str, str] = field(default_factory=dict)
    other: list[str] = field(default_factory=list)


class NoSubmission(ValueError):
    """It cannot be read; the message says why."""


def wanted() -> list[str]:
    """ "task1/attention.py", ...: every file that students write."""
    return [f"{task}/{name}" for task in tasks() for name in read_manifest(task).files]


def name_of(source: str) -> str:
    """What a submission is called: the last part of its path, without what an archive's name ends with."""
    name = PurePosixPath(source.rstrip("/")).name
    for ending in (".tar.gz", ".tar.xz", ".tar.bz2", ".tgz", ".tar", ".zip", ".bundle", ".git"):
        name = name.removesuffix(ending)
    return "".join(c if c.isalnum() or c in "._-@+" else "_" for c in name).lstrip(".") or "submission"


def read_submission(source: str, graded: Sequence[str] | None = None) -> Submission:
    """Reads it.

    Args:
        source: path or address.
        graded: the tasks that count when a file lies there without its task's folder; None: all.

    Raises:
        NoSubmission: there is none, or it is too large.
    """
    entries = {}
    try:
        for number, entry in enumerate(_entries(source)):
            if number >= MOST_ENTRIES:
                raise NoSubmission(f"{source}: more than {MOST_ENTRIES:,} files")
            entries.setdefault(entry.path, entry)
        return _chosen(name_of(source), entries, graded or tasks())
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError, RuntimeError, NotImplementedError) as error:
        raise NoSubmission(f"{source}: cannot be read: {type(error).__name__}: {error}") from None


@dataclass(frozen=True)
class _Entry:
    """path: within the submission. data: of a regular file, as far as it was read; "why not" for another."""

    path: str
    data: bytes | str


def _chosen(name: str, entries: dict[str, _Entry], graded: Sequence[str]) -> Submission:
    names = wanted()
    roots = [path[: -len(one)] for path in entries for one in names if path == one or path.endswith(f"/{one}")]
    root = max(set(roots), key=lambda r: (roots.count(r), -len(r), r)) if roots else ""
    files, problems = {}, {}
    bare = [one.split("/")[1] for one in names if one.split("/")[0] in graded]
    for one in names:
        task, alone = one.split("/")
        entry = entries.get(root + one)
        if entry is None and not roots and task in graded and bare.count(alone) == 1:
            entry = next((entries[path] for path in sorted(entries) if PurePosixPath(path).name == alone), None)
        if entry is None:
            problems[one] = "The file is missing."
            continue
        text, problem = _text(entry.data)
        if problem:
            problems[one] = problem
        else:
            files[one] = text
    taken = {root + one for one in names}
    return Submission(name, files, problems, sorted(path for path in entries if path not in taken)[:20])


def _text(data: bytes | str) -> tuple[str, str]:
    """(the text, why there is none)."""
    if isinstance(data, str):
        return "", data
    if len(data) > MOST_BYTES:
        return "", f"The file has more than {MOST_BYTES:,} bytes."
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return "", f"Line {line}: byte 0x{data[error.start]:02x} is not UTF-8: save the file in that encoding."
    return ("", "The file holds zero bytes: it is no text.") if "\0" in text else (text, "")


def _entries(source: str) -> Iterator[_Entry]:
    path = Path(source)
    if path.is_dir():
        if (path / "HEAD").is_file() and (path / "objects").is_dir():
            return _cloned(str(path.resolve()))
        return _in_folder(path)
    if path.is_file():
        if path.suffix == ".bundle":
            return _cloned(str(path.resolve()))
        if zipfile.is_zipfile(path):
            return _in_zip(path)
        if tarfile.is_tarfile(path):
            return _in_tar(path)
        raise NoSubmission(f"{source}: neither a folder nor a zip, tar or git bundle")
    if "://" in source or source.startswith("git@"):
        return _cloned(source)
    raise NoSubmission(f"{source}: no such file or folder")


def _in_folder(folder: Path) -> Iterator[_Entry]:
    endings = tuple(one.split("/")[1] for one in wanted())
    for place, below, names in os.walk(folder, followlinks=False):
        below[:] = sorted(one for one in below if one not in (".git", "build", "__pycache__"))
        for name in sorted(names):
            path = Path(place) / name
            shown = str(PurePosixPath(*path.relative_to(folder).parts)).encode(errors="replace").decode()
            yield _Entry(shown, _read_regular(folder, path) if name in endings else b"")


def _read_regular(folder: Path, path: Path) -> bytes | str:
    """Its first bytes; why not, for a link, a pipe, a device, or a file that lies elsewhere."""
    if not path.resolve().is_relative_to(folder.resolve()) or path.is_symlink():
        return "This is a link; a submission holds the file itself."
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return "This is no regular file."
        with os.fdopen(file, "rb", closefd=False) as opened:
            return opened.read(MOST_BYTES + 1)
    finally:
        os.close(file)


def _in_zip(path: Path) -> Iterator[_Entry]:
    endings = tuple(one.split("/")[1] for one in wanted())
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist()[: MOST_ENTRIES + 1]:
            if info.is_dir():
                continue
            kind = info.external_attr >> 16
            if stat.S_IFMT(kind) not in (0, stat.S_IFREG):
                yield _Entry(info.filename, "This is a link; a submission holds the file itself.")
            elif not info.filename.endswith(endings):
                yield _Entry(info.filename, b"")
            else:
                with archive.open(info) as opened:
                    yield _Entry(info.filename, opened.read(MOST_BYTES + 1))


def _in_tar(path: Path) -> Iterator[_Entry]:
    endings = tuple(one.split("/")[1] for one in wanted())
    seen = 0
    with tarfile.open(path, "r|*") as archive:
        for info in archive:
            seen += 512 + info.size
            if seen > MOST_UNPACKED:
                raise NoSubmission(f"{path}: unpacked it has more than {MOST_UNPACKED:,} bytes")
            name = info.name.removeprefix("./")
            if info.isdir():
                continue
            if not info.isreg():
                yield _Entry(name, "This is a link; a submission holds the file itself.")
            elif not name.endswith(endings):
                yield _Entry(name, b"")
            else:
                yield _Entry(name, archive.extractfile(info).read(MOST_BYTES + 1))


def _cloned(address: str) -> Iterator[_Entry]:
    """What HEAD holds, read out of a clone of our own: nothing of the repository's configuration counts."""
    endings = tuple(one.split("/")[1] for one in wanted())
    with tempfile.TemporaryDirectory() as folder:
        _git(["clone", "--quiet", "--bare", "--depth=1", "--no-local", "--", address, f"{folder}/clone"])
        listed = _git(["--git-dir", f"{folder}/clone", "ls-tree", "-r", "-z", "--long", "HEAD"])
        for line in listed.decode(errors="replace").split("\0"):
            if not line:
                continue
            about, path = line.split("\t", 1)
            mode, _, key, size = about.split()
            if not mode.startswith("100"):
                yield _Entry(path, "This is a link; a submission holds the file itself.")
            elif not path.endswith(endings):
                yield _Entry(path, b"")
            elif int(size) > MOST_BYTES:
                yield _Entry(path, f"The file has more than {MOST_BYTES:,} bytes.")
            else:
                yield _Entry(path, _git(["--git-dir", f"{folder}/clone", "cat-file", "blob", key]))


def _git(arguments: list[str]) -> bytes:
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    command = ["git", "-c", "safe.directory=*", "-c", "protocol.ext.allow=never", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, env={"PATH": os.environ["PATH"], **quiet}, timeout=GIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise NoSubmission(f"git {arguments[0]} took more than {GIT_SECONDS} seconds") from None
    if done.returncode:
        raise NoSubmission(f"git: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return done.stdout

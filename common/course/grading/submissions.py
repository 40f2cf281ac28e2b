"""Reads a submission: read_submission(path) -> the files that the manifests name, and nothing else.

A submission is a folder, a .zip, a .tar (also compressed) or a git repository: a .bundle, a bare repository, or a URL
to clone from. The tasks' folders may be anywhere in it, as long as they are all in one place. A file outside its task's
folder counts if only one task has a file of that name. A process with resource limits reads submissions (apart.py).
"""

from __future__ import annotations

import functools
import lzma
import os
import re
import stat
import subprocess
import tarfile
import tempfile
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

from common.compiling.manifest import read_manifest, tasks
from common.compiling.skeletons import skeleton_of
from common.course.grading.apart import Refused, call_apart

MOST_BYTES = 1 << 20  # per file
MOST_ENTRIES = 50_000  # per submission
MOST_UNPACKED = 1 << 29  # bytes read from a compressed tar
MOST_KEPT = 1 << 25  # bytes of all files named like the tasks' files
MOST_NAME, MOST_NOTE = 100, 400  # characters in a submission's name, in a note
GIT_SECONDS = 120
ARCHIVES = (".tar.gz", ".tar.xz", ".tar.bz2", ".tgz", ".tar", ".zip", ".bundle")
ZIP = (b"PK\3\4", b"PK\5\6")  # how one begins
MISSING = "The file is missing."
LINK = "This is a link; a submission holds the file itself."
NO_FILE = "This is no regular file; a submission holds the file itself."
BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError)


@dataclass(frozen=True)
class Submission:
    """A submission's files.

    Attributes:
        name: the name of the folder or archive.
        files: "task2/attention_kernel.cu" -> its text.
        problems: file -> why it is not accepted, a sentence.
        notes: remarks for the student on which files were accepted, a sentence each.
    """

    name: str
    files: dict[str, str]
    problems: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class NoSubmission(ValueError):
    """The submission cannot be read; the message says why, in one line."""

    def __init__(self, why: str) -> None:
        super().__init__(printable(" ".join(why.split())))


def printable(words: str) -> str:
    """Replaces what a terminal would obey and no file can hold: control characters and bytes that are not UTF-8."""
    return words if words.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in words)


def safe(words: str) -> str:
    """Words of several lines, as any terminal and file can show them."""
    return "\n".join(map(printable, words.expandtabs().splitlines()))


@functools.cache
def wanted() -> list[str]:
    """Every file that students write: "task1/attention.py", ..."""
    return [f"{task}/{name}" for task in tasks() for name in read_manifest(task).files]


def name_of(source: str) -> str:
    """A submission's name: the last component of its path, without an archive's suffix."""
    name = PurePosixPath(source.rstrip("/")).name
    for ending in (*ARCHIVES, ".git"):
        name = name.removesuffix(ending)
    name = unicodedata.normalize("NFC", name)  # a Mac writes an accent as a character of its own
    kept = "".join(c if c.isalnum() or c in "._-@+" else "_" for c in name).lstrip(".")
    return kept[:MOST_NAME] or "submission"


def read_submission(source: str, graded: Sequence[str] | None = None, folder: Path | None = None) -> Submission:
    """Reads a submission.

    Args:
        source: path or URL.
        graded: the tasks considered for a file outside its task's folder; None: all.
        folder: for temporary files.

    Raises:
        NoSubmission: there is none, it is too large, or reading it takes too long.
    """
    try:
        return Submission(**call_apart(f"{__name__}:parsed_as_json", [source, graded], folder))
    except Refused as error:
        raise NoSubmission(str(error)) from None


def parsed_as_json(source: str, graded: Sequence[str] | None) -> dict:
    """parsed() as JSON."""
    return asdict(parsed(source, graded))


def parsed(source: str, graded: Sequence[str] | None = None) -> Submission:
    """Like read_submission, but in this process."""
    try:
        return _read(source, graded or tasks())
    except BROKEN as error:
        raise NoSubmission(f"the archive is damaged, pack it again: {error}") from None
    except UnicodeDecodeError as error:  # from a zip whose flags promise UTF-8
        name = error.object.decode(errors="replace")
        raise NoSubmission(f"the name {name} in the archive is not UTF-8: rename it and pack it again") from None


def _read(source: str, graded: Sequence[str]) -> Submission:
    entries: dict[str, _Entry] = {}
    twice, number, size, inner = set(), 0, 0, ""
    for entry in _entries(source):
        if not _is_wanted(entry.path) and _plain(entry.path) not in _wanted_names():
            inner = inner or entry.path * entry.path.lower().endswith(ARCHIVES)
            continue
        number += 1
        if number > MOST_ENTRIES:
            raise NoSubmission(f"more than {MOST_ENTRIES:,} files of the names that the tasks ask for")
        size += len(entry.data)
        if size > MOST_KEPT:
            raise NoSubmission(f"its files of the names that the tasks ask for have more than {MOST_KEPT:,} bytes")
        if entries.get(entry.path, entry).data != entry.data:
            twice.add(entry.path)
        entries[entry.path] = entry  # the last one wins, as when unpacking an archive
    if inner and not entries:
        raise NoSubmission(f"it holds none of the tasks' files, only another archive: hand in what is in {inner}")
    return _chosen(name_of(source), entries, graded, twice)


@dataclass(frozen=True)
class _Entry:
    """path: within the submission, printable. data: a regular file's bytes as far as read; otherwise, why not (str)."""

    path: str
    data: bytes | str

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", printable(self.path))


def _chosen(name: str, entries: dict[str, _Entry], graded: Sequence[str], twice: set[str]) -> Submission:
    names = wanted()
    spelled = Counter(map(_in_lower_case, entries))
    entries = {low if spelled[low := _in_lower_case(path)] == 1 else path: one for path, one in entries.items()}
    found = [(path[: -len(one)], one) for path in entries for one in names if path == one or path.endswith(f"/{one}")]
    roots = Counter(root for root, _ in found)
    own = Counter(root for root, one in found if not _is_given(one, entries[root + one].data))

    def weight(root: str) -> tuple[int, int, int]:
        return own[root], roots[root], -root.count("/")

    root = max(sorted(roots), key=weight) if roots else ""
    files, problems, notes = {}, {}, []
    bare = [one.split("/")[1] for one in names if one.split("/")[0] in graded]
    for one in names:
        task, alone = one.split("/")
        others = [f"{other}{one}" for other in sorted(roots.keys() - {root}) if f"{other}{one}" in entries]
        if root + one in entries:
            path, equal = root + one, [other for other in others if weight(other[: -len(one)]) == weight(root)]
        elif not roots and task in graded and bare.count(alone) == 1:
            equal = sorted(path for path in entries if PurePosixPath(path).name == alone)
            path = equal[0] if equal else ""
        else:
            path, equal = others[0] if others else "", others
        if not path:
            alike = [other for other in sorted(entries) if _plain(other) == alone and _may_belong(other, task)]
            said = "".join(f" {other} is not graded: its path must be {one}." for other in alike[:1])
            problems[one] = f"{MISSING}{said}"[:MOST_NOTE]
            continue
        data = entries[path].data
        if unlike := [other for other in equal if entries[other].data != data]:
            problems[one] = f"There are different copies, {path} and {unlike[0]}: hand in one."
            continue
        text, problem = _text(data)
        if problem:
            problems[one] = problem
            continue
        files[one] = text
        if entries[path].path in twice:
            notes.append(f"{path} is there more than once; the last one was graded.")
        if unlike := [other for other in others if entries[other].data != data]:
            notes.append(f"{path} was graded, and not the other copy, {unlike[0]}.")
    return Submission(name, files, problems, [note[:MOST_NOTE] for note in notes])


def _in_lower_case(path: str) -> str:
    """The path with its task's folder in lower case: "task3/attention.py" for "Task3/attention.py"."""
    *above, folder, name = "", *path.split("/")
    return path if f"{folder.lower()}/{name}" not in wanted() else "/".join([*above, folder.lower(), name])[1:]


@functools.cache
def given() -> dict[str, str]:
    """Every file as released, with its gaps."""
    found = {}
    for manifest in map(read_manifest, tasks()):
        for name in manifest.files:
            solution = manifest.folder / "solution" / name
            if solution.is_file():
                found[f"{manifest.task}/{name}"] = skeleton_of(solution.read_text(encoding="utf-8"), name)
            elif (manifest.folder / name).is_file():
                found[f"{manifest.task}/{name}"] = (manifest.folder / name).read_text(encoding="utf-8")
    return found


def _is_given(name: str, data: bytes | str) -> bool:
    return isinstance(data, bytes) and data.decode(errors="replace").split() == given().get(name, "").split()


def _plain(path: str) -> str:
    """The file's name in lower case, without the suffix of a copy: "attention.py" for "Attention (1).py"."""
    stem, dot, ending = PurePosixPath(path).name.lower()[-MOST_NAME:].rpartition(".")
    copy = re.match(r"[\W_]*\d{0,3}[\W_]*(ypoc)?[\W_]*", stem[::-1])  # backward, this never backtracks
    return stem[: len(stem) - copy.end()] + dot + ending


def _may_belong(path: str, task: str) -> bool:
    folder = PurePosixPath(path).parent.name.lower()
    return folder == task or folder not in tasks()


def _text(data: bytes | str) -> tuple[str, str]:
    """Decodes a file: (the text, why there is none)."""
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
            return _in_bare(path.resolve())
        return _in_folder(path)
    if path.is_file():
        if path.suffix == ".bundle":
            return _cloned(str(path.resolve()))
        with path.open("rb") as opened:
            is_zip = opened.read(4) in ZIP  # is_zipfile() looks at the end, where a tar may hold a zip
        if not is_zip and tarfile.is_tarfile(path):
            return _in_tar(path)
        if zipfile.is_zipfile(path):
            return _in_zip(path)
        raise NoSubmission("neither a folder nor a zip, tar or git bundle")
    if is_address(source):
        return _cloned(source)
    raise NoSubmission("no such file or folder")


@functools.cache
def _wanted_names() -> set[str]:
    return {one.split("/")[1] for one in wanted()}


def _is_wanted(path: str) -> bool:
    return PurePosixPath(path).name in _wanted_names()


def _in_folder(folder: Path) -> Iterator[_Entry]:
    for place, below, names in os.walk(folder, followlinks=False):
        skipped = (".git", "__pycache__", *(("build",) if "common" in below else ()))  # a checkout's build folder
        below[:] = sorted(one for one in below if one not in skipped)
        for name in sorted(names):
            path = Path(place) / name
            shown = str(PurePosixPath(*path.relative_to(folder).parts))
            yield _Entry(shown, _read_regular(folder, path) if _is_wanted(name) else b"")


def _read_regular(folder: Path, path: Path) -> bytes | str:
    """A file's first bytes; for a link, a pipe, a device, or a file outside the folder: why it is not read."""
    if not path.resolve().is_relative_to(folder.resolve()) or path.is_symlink():
        return LINK
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return NO_FILE
        with os.fdopen(file, "rb", closefd=False) as opened:
            return opened.read(MOST_BYTES + 1)
    finally:
        os.close(file)


def _in_zip(path: Path) -> Iterator[_Entry]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = info.filename.replace("\\", "/").removeprefix("./")  # backslashes: some Windows programs write them
            kind = info.external_attr >> 16
            if name.endswith("/"):
                continue
            if stat.S_IFMT(kind) not in (0, stat.S_IFREG):
                yield _Entry(name, LINK if stat.S_ISLNK(kind) else NO_FILE)
            elif not _is_wanted(name):
                yield _Entry(name, b"")
            elif info.flag_bits & 1:
                raise NoSubmission("the zip is encrypted; make one without a password")
            else:
                try:
                    with archive.open(info) as opened:
                        data = opened.read(MOST_BYTES + 1)
                except NotImplementedError:  # Deflate64, which Windows chooses for large files
                    raise NoSubmission(
                        f"{name} is compressed in an unusual way: zip it with the method Deflate"
                    ) from None
                yield _Entry(name, data)


def _in_tar(path: Path) -> Iterator[_Entry]:
    seen, kept = 0, {}
    with tarfile.open(path, "r|*") as archive:
        for info in archive:
            seen += 512 + info.size
            if seen > MOST_UNPACKED:
                raise NoSubmission(f"unpacked it has more than {MOST_UNPACKED:,} bytes")
            name = info.name.removeprefix("./")
            if info.isdir():
                continue
            if info.islnk():  # a further name of an earlier file
                yield _Entry(name, kept.get(info.linkname.removeprefix("./"), LINK))
            elif not info.isreg():
                yield _Entry(name, LINK if info.issym() else NO_FILE)
            elif not _is_wanted(name):
                yield _Entry(name, b"")
            else:
                kept[name] = archive.extractfile(info).read(MOST_BYTES + 1)
                yield _Entry(name, kept[name])


def _in_bare(folder: Path) -> Iterator[_Entry]:
    """Reads a bare repository; rejects one with objects outside the folder."""
    elsewhere = [one for one in ("objects/info/alternates", "commondir") if (folder / one).exists()]
    elsewhere += [path.name for path in folder.rglob("*") if path.is_symlink()]
    if elsewhere:
        raise NoSubmission(f"the repository refers to files outside of it, by {elsewhere[0]}")
    yield from _cloned(str(folder))


def _cloned(address: str) -> Iterator[_Entry]:
    """The files of HEAD, or of the only branch of a bundle without HEAD. They are read from a fresh clone, so that the
    repository's configuration has no effect."""
    with tempfile.TemporaryDirectory() as folder:
        branches = ["--no-single-branch"] if address.endswith(".bundle") else []
        _git(["clone", "--quiet", "--bare", "--depth=1", "--no-local", *branches, "--", address, f"{folder}/clone"])
        git = ["--git-dir", f"{folder}/clone"]
        blob = functools.cache(lambda key: _git([*git, "cat-file", "blob", key]))
        for line in _listed([*git, "ls-tree", "-r", "-z", "--long", _head(f"{folder}/clone")]):
            about, path = line.split("\t", 1)
            mode, _, key, size = about.split()
            if not mode.startswith("100"):
                yield _Entry(path, LINK if mode == "120000" else NO_FILE)
            elif not _is_wanted(path):
                yield _Entry(path, b"")
            elif int(size) > MOST_BYTES:
                yield _Entry(path, f"The file has more than {MOST_BYTES:,} bytes.")
            else:
                yield _Entry(path, blob(key))


def _head(clone: str) -> str:
    try:
        return _git(["--git-dir", clone, "rev-parse", "--quiet", "--verify", "HEAD^{commit}"]).decode().strip()
    except NoSubmission:
        named = _git(["--git-dir", clone, "for-each-ref", "--format=%(refname)", "refs/heads"]).decode().split()
        if len(named) == 1:
            return named[0]
        raise NoSubmission(
            f"it has {len(named)} branches and doesn't say which one counts: git bundle create NAME.bundle HEAD"
        ) from None


def is_address(source: str) -> bool:
    """Whether the source is a repository's URL rather than a path."""
    return "://" in source or source.startswith("git@")


def _listed(arguments: list[str]) -> Iterator[str]:
    """What git lists with -z, as it comes: the same tree in every folder of another makes a list without end."""
    rest = b""
    with _started(arguments) as process:
        try:
            while data := process.stdout.read1(1 << 16):
                *lines, rest = (rest + data).split(b"\0")
                yield from (line.decode(errors="replace") for line in lines)
            if process.wait(GIT_SECONDS):
                raise NoSubmission(f"git: {process.stderr.read().decode(errors='replace').strip()[-300:]}")
        finally:
            process.kill()


def _git(arguments: list[str]) -> bytes:
    with _started(arguments) as process:
        try:
            said, errors = process.communicate(timeout=GIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise NoSubmission(f"git {arguments[0]} took more than {GIT_SECONDS} seconds") from None
    if process.returncode:
        raise NoSubmission(f"git: {errors.decode(errors='replace').strip()[-300:]}")
    return said


def _started(arguments: list[str]) -> subprocess.Popen:
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    quiet |= {"GIT_NO_LAZY_FETCH": "1", "PATH": os.environ["PATH"]}
    command = ["git", "-c", "safe.directory=*", "-c", "protocol.ext.allow=never", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=quiet)

"""Bring a newer release of the course into this checkout: your gaps and results are kept, and conflicts are reported.

Files that you edit are merged with the new release (by git merge-file). All others are replaced; if you had changed
one, your version is kept next to it as .bak.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from common.compiling.manifest import read_manifest, tasks
from common.compiling.student_gaps import START
from common.console.files import keep_old
from common.console.paths import ROOT
from common.console.terminal import say
from common.course.release_record import NAME, hash_of, read_record

RESULTS = "Results.md"


@dataclass
class Updated:
    """What an update did: lists of file names."""

    written: list[str] = field(default_factory=list)
    merged: list[str] = field(default_factory=list)
    kept_beside: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("release", metavar="DIR", type=Path, help="the newer release, unpacked or cloned")


def run(options: argparse.Namespace) -> int:
    """0: updated. 1: there are conflicts. 2: nothing was done."""
    console = Console()
    try:
        done = update(ROOT, options.release.resolve())
    except (ValueError, OSError) as error:
        say(console, error, "red")
        return 2
    for words, names in (
        ("your work is merged into the new version", done.merged),
        ("you had changed it; your text is next to it as .bak", done.kept_beside),
        ("no longer in the new release, so removed", done.removed),
    ):
        for name in names:
            say(console, f"{name}: {words}")
    for name in done.conflicts:
        say(console, f"{name}: CONFLICT; yours is unchanged, {name}.merged has both between <<<<<<< and >>>>>>>", "red")
    say(console, f"{len(done.written) + len(done.merged)} files are new")
    return 1 if done.conflicts else 0


def update(checkout: Path, release: Path) -> Updated:
    """Updates the checkout.

    Args:
        checkout: a student edition with filled gaps.
        release: a newer, unmodified one.

    Raises:
        ValueError: one of them is not a release, or git is missing. OSError: a file cannot be written.
    """
    old, new = read_record(checkout), read_record(release)
    if checkout == release:
        raise ValueError(f"{release} is this checkout itself; update needs another folder, with the newer release")
    done = Updated()
    theirs = {RESULTS, *(f"{task}/{name}" for task in tasks() for name in read_manifest(task).files)}  # to merge
    for name, mark in sorted(new.items(), key=lambda one: (one[0] not in theirs, one[0])):  # before given/start
        file, data = checkout / name, (release / name).read_bytes()
        now = file.read_bytes() if file.is_file() else None
        if hash_of(data) != mark:
            raise ValueError(f"{release / name} differs from what was released: update needs an untouched release")
        if now == data:
            continue
        start = _given_out(checkout, name)
        if name in theirs and now is not None and start is not None and old.get(name) != hash_of(now):
            _merge(file, start, data, done, name)
            continue
        if now is not None and hash_of(now) != old.get(name):
            keep_old(file)
            done.kept_beside.append(name)
        _write(file, data)
        done.written.append(name)
    for name in sorted(set(old) - set(new)):
        file = checkout / name
        if file.is_file() and hash_of(file.read_bytes()) == old[name]:
            file.unlink()
            done.removed.append(name)
    _write(checkout / NAME, (release / NAME).read_bytes())
    return done


def _given_out(checkout: Path, name: str) -> bytes | None:
    """A student's file as originally released in this checkout; None if unknown."""
    folder, _, file = name.rpartition("/")
    start = checkout / folder / START / file
    kept = checkout / ".release" / name
    return next((one.read_bytes() for one in (start, kept) if one.is_file()), None)


def _merge(file: Path, start: bytes, new: bytes, done: Updated, name: str) -> None:
    """Three-way merge: the original release, the student's version, and the new release."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for part, data in (("yours", file.read_bytes()), ("given out", start), ("new", new)):
            (place / part).write_bytes(data)
        labels = ("-L", "yours", "-L", "as given out", "-L", "new")
        command = ["git", "merge-file", "-p", *labels, "yours", "given out", "new"]
        try:
            merged = subprocess.run(command, cwd=place, capture_output=True)
        except FileNotFoundError:
            raise ValueError("update needs git, which was not found") from None
    if merged.returncode == 0:
        _write(file, merged.stdout)
        done.merged.append(name)
    elif 0 < merged.returncode < 128:
        _write(file.with_name(file.name + ".merged"), merged.stdout)
        done.conflicts.append(name)
    else:
        raise ValueError(f"git merge-file {name}: {merged.stderr.decode(errors='replace').strip()}")


def _write(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.new")
    unfinished.write_bytes(data)
    if file.exists():
        unfinished.chmod(file.stat().st_mode & 0o777)
    unfinished.replace(file)

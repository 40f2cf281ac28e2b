"""Write the student edition to a folder: no solutions, hidden cases, grading, or tests; a git history of one commit.

Questions to ask students about their own code are written next to the folder, in DIR.questions.md.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

from rich.console import Console

from common.console.paths import ROOT
from common.console.terminal import say
from common.course.releasing.contents import left_behind, release_files

QUESTIONS = ROOT / "common" / "course" / "questions.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="a new folder, or an empty one")
    parser.add_argument("--no-git", action="store_true", help="don't make it a git repository")


def run(options: argparse.Namespace) -> int:
    """0: written. 2: not written."""
    console, folder = Console(), options.folder.resolve()
    try:
        write_release(folder, git=not options.no_git)
    except (ValueError, OSError) as error:
        say(console, error, "red")
        return 2
    questions = folder.with_name(folder.name + ".questions.md")
    shutil.copyfile(QUESTIONS, questions)
    say(console, f"{folder}: the student edition; {questions.name} next to it is for instructors")
    return 0


def write_release(folder: Path, git: bool = True) -> None:
    """Writes the student edition.

    Raises:
        ValueError: the folder is not empty, this checkout is not the whole course, or the output contains a secret.
        OSError: it cannot be written.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; a release goes into a new folder")
    for name, data in release_files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if (ROOT / name).is_file():
            path.chmod((ROOT / name).stat().st_mode & 0o777)
    if found := left_behind(folder):
        raise ValueError(f"do not distribute this release: {'; '.join(found[:5])}")
    if git:
        who = ["-c", "user.name=The course", "-c", "user.email=course@example.org", "-c", "commit.gpgsign=false"]
        for command in (["init", "-q", "-b", "main"], ["add", "-A"], [*who, "commit", "-q", "-m", "The assignment"]):
            done = subprocess.run(["git", *command], cwd=folder, capture_output=True)
            if done.returncode:
                raise ValueError(f"git {command[-1]}: {done.stderr.decode(errors='replace').strip()}")

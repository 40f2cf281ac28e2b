"""Write the zip that Gradescope needs: setup.sh, run_autograder, the course with solutions and hidden cases, the salt.

Gradescope grades every submission with `python -m common.course grade` and shows the resulting results.json. Its
containers forbid user namespaces, so submissions run as another user there. Keep the zip secret: it contains the
solutions and the salt.
"""

from __future__ import annotations

import argparse
import subprocess
import zipfile
from pathlib import Path

from rich.console import Console

from common.compiling.manifest import tasks
from common.console.paths import ROOT
from common.console.terminal import say
from common.course.grading.salt import salt_in

TEMPLATES = ROOT / "common" / "course" / "templates"
LEFT_OUT = ("tests/", "docs/", ".ci/", ".devcontainer/")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    add = parser.add_argument
    add("zip", metavar="FILE.zip", type=Path, help="a new file")
    add(
        "--salt",
        metavar="DIR",
        type=Path,
        required=True,
        help="folder with the class's salt, as grade --out; made if new",
    )
    add("--task", action="append", dest="tasks", choices=tasks(), help="grade only this task; can be repeated")


def run(options: argparse.Namespace) -> int:
    """0: written. 2: not written."""
    console = Console()
    try:
        options.salt.mkdir(parents=True, exist_ok=True)
        write_autograder(options.zip, salt_in(options.salt), options.tasks or [])
    except (ValueError, OSError) as error:
        say(console, error, "red")
        return 2
    size = options.zip.stat().st_size / 2**20
    say(
        console,
        f"{options.zip}: {size:.0f} MiB; upload it as a programming assignment's autograder. Keep it secret",
    )
    return 0


def write_autograder(file: Path, salt: bytes, names: list[str]) -> None:
    """Writes the zip.

    Raises:
        ValueError: this is not a git checkout, or it is a student edition.
        FileExistsError: the file already exists.
    """
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if done.returncode or not any(ROOT.glob("task*/cases/hidden.py")):
        raise ValueError(f"{ROOT} must be a git checkout of the whole course")
    listed = [name for name in done.stdout.decode().split("\0") if name and not name.startswith(LEFT_OUT)]
    choice = " ".join(f"--task {name}" for name in names)
    with zipfile.ZipFile(file, "x", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "setup.sh", (TEMPLATES / "setup.sh").read_bytes(), 0o755)
        script = (TEMPLATES / "run_autograder").read_text(encoding="utf-8").replace("TASKS", choice)
        _add(archive, "run_autograder", script.encode(), 0o755)
        _add(archive, "salt", salt + b"\n", 0o600)
        for name in listed:
            if (ROOT / name).is_file():
                _add(archive, f"course/{name}", (ROOT / name).read_bytes(), 0o644)


def _add(archive: zipfile.ZipFile, name: str, data: bytes, mode: int) -> None:
    info = zipfile.ZipInfo(name)
    info.external_attr, info.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
    archive.writestr(info, data)

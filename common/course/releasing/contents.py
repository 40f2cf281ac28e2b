"""The files of the student edition: release_files() -> {name: content}."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from common.compiling.manifest import read_manifest, tasks
from common.compiling.student_gaps import START, given_out
from common.console.files import read_source
from common.console.paths import ROOT
from common.course.release_record import NAME, written
from common.course.releasing.words import for_students

LEFT_OUT = re.compile(
    r"tests/|\.ci/|docs/.*\.py$|mkdocs\.yml$|task\d+/solution/|task\d+/cases/hidden\.py$|"
    r"common/course/(grading|releasing|templates)/|common/course/(grade|gradebook|attack|rehearse|release|autograder)\.py$|"
    r"common/course/(README|questions)\.md$|common/(skeleton|nvcc_check)\.py$|common/README\.md$|"
    r"common/testing/runner/apart\.py$"
)
DOCUMENTS = re.compile(r"(README|Results)\.md$|task\d+/README\.md$|AGENTS\.md$|docs/.*\.md$")
TEMPLATES = ROOT / "common" / "course" / "templates"


def release_files() -> dict[str, bytes]:
    """Name -> content, including .release.json.

    Raises:
        ValueError: this is not a checkout of the whole course: no git, or no solutions.
    """
    if not all((ROOT / task / "solution").is_dir() for task in tasks()):
        raise ValueError(f"{ROOT} has no solutions: only the whole course can make a student edition")
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if done.returncode:
        raise ValueError(f"{ROOT} is not a git checkout: {done.stderr.decode(errors='replace').strip()}")
    names = [name for name in done.stdout.decode().split("\0") if name and not LEFT_OUT.match(name)]
    files = {name: (ROOT / name).read_bytes() for name in names if (ROOT / name).is_file()}
    for task in tasks():
        manifest = read_manifest(task)
        for name in manifest.with_gaps:
            text = given_out(manifest.folder / name).encode()
            files[f"{task}/{name}"] = files[f"{task}/{START}/{name}"] = text
        for name in set(manifest.files) - set(manifest.with_gaps):
            files[f".release/{task}/{name}"] = files[f"{task}/{name}"]
    for name in files:
        if DOCUMENTS.fullmatch(name):
            files[name] = for_students(read_source(ROOT / name)).encode()
    files[".release/Results.md"] = files["Results.md"]
    files[".github/workflows/classroom.yml"] = (TEMPLATES / "classroom.yml").read_bytes()
    files["pyproject.toml"] = _without_ours(files["pyproject.toml"].decode()).encode()
    return {**files, NAME: written(files)}


def _without_ours(pyproject: str) -> str:
    """pyproject.toml without the extras and settings of the project's own tests and of grading."""
    sections = re.split(r"\n(?=\[)", pyproject)
    kept = [one for one in sections if not re.match(r"\[+tool\.(pytest|importlinter|ruff)", one)]
    text = "\n".join(kept)
    return re.sub(r"\n(?:#[^\n]*\n)*(?:test|grade) = \[[^\]]*\]", "", text)


def left_behind(folder: Path) -> list[str]:
    """Files that must not be in a student edition but are: a sentence each."""
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts):
        name = str(path.relative_to(folder))
        if LEFT_OUT.match(name):
            found.append(f"{name} is there")
        if name.startswith(tuple(tasks())):
            text = path.read_text(encoding="utf-8", errors="replace")
            if re.search(r"^\s*(//|#) BEGIN SOLUTION\b", text, re.MULTILINE):
                found.append(f"{name} holds a solution")
    return found

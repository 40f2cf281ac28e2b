"""The student edition: its contents, that it works, can be solved and graded; and updating it to a newer one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from forked_python import run_python

from common.compiling.manifest import read_manifest, tasks
from common.compiling.skeletons import fill_gaps
from common.course.grading.running import grade_all, workshop
from common.course.grading.sandbox import Limits, why_no_bubblewrap
from common.course.release import write_release
from common.course.release_record import NAME, read_record, written
from common.course.releasing.contents import left_behind
from common.course.releasing.words import ABSENT, for_students
from common.course.update import update

LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "attention"
    write_release(folder)
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return run_python(arguments, cwd=folder, env={**environment, "COLUMNS": "120"}, timeout=600)


def documents(release: Path) -> list[Path]:
    return [
        release / "README.md",
        *sorted(release.glob("docs/*.md")),
        *(release / one / "README.md" for one in tasks()),
    ]


@pytest.mark.long
def test_every_command_of_its_documents_is_there_with_its_flags(release: Path) -> None:
    found = set()
    for file in documents(release):
        text = re.sub(r"<!-- OUTPUT.*?<!-- END OUTPUT -->", "", file.read_text(), flags=re.DOTALL)
        listed = re.findall(r"(?m)^ *(python -m [^\n]*?)(?: {2,}|$)", text)
        found |= {*listed, *re.findall(r"`(python -m [^`]*)`", re.sub(r"\n *", " ", text))}
    helps: dict[str, str] = {}
    for command in sorted(found):
        module, *words = command.split()[2:]
        name = " ".join([module, *words[:1]] if module == "common.course" and words else [module])
        if "taskN" in name or name in ("NAME", "venv"):
            continue
        if name not in helps:
            shown = run(release, "-m", *name.split(), "--help")
            assert shown.returncode == 0, (command, shown.stderr[-500:])
            helps[name] = shown.stdout
        absent = [flag for flag in re.findall(r" (--[a-z-]+)", command) if flag not in helps[name]]
        assert not absent, (command, absent)
    assert len(helps) > 10


def filled(release: Path, folder: Path, only: str | None = None) -> Path:
    """A copy with the gaps of one task, or of all, filled."""
    shutil.copytree(release, folder)
    fill_gaps(folder, only)
    return folder


def test_it_holds_no_solution_and_no_secret(release: Path) -> None:
    assert left_behind(release) == []
    names = set(read_record(release))
    assert not [name for name in names if "solution" in name.split("/") or name.endswith("hidden.py")]
    assert not [name for name in names if name.startswith(("tests/", "common/course/grad"))]
    for task in tasks():
        for name in read_manifest(task).with_gaps:
            assert (release / task / name).read_bytes() == (release / task / "given/start" / name).read_bytes()
    log = subprocess.run(["git", "log", "--format=%an %s"], cwd=release, capture_output=True, text=True).stdout
    assert log == "The course The assignment\n"
    status = subprocess.run(["git", "status", "--short"], cwd=release, capture_output=True, text=True).stdout
    assert status == ""


def test_its_documents_speak_of_what_is_there(release: Path) -> None:
    for file in documents(release):
        text = file.read_text()
        assert not ABSENT.search(text), (file, ABSENT.search(text))
        missing = [link for link in LINK.findall(text) if not (file.parent / link).exists()]
        assert not missing, (file, missing)
    assert "pip install -e . -c constraints.txt" in (release / "README.md").read_text()


@pytest.mark.parametrize(
    "said, left",
    [
        ("One. Take `--solution` (the reference: good). Two.", "One. Two."),
        ("It takes `--a` (x: y) and `--solution` (the\nreference: z). Two.", "It takes `--a` (x: y). Two."),
        ("- one\n- two with solution/ in it\n- three", "- one\n- three"),
        ("| a |\n|---|\n| `--solution` |\n| b |", "| a |\n|---|\n| b |"),
        ("First. Run this:\n\n```console\npytest\n```\n\nLast.", "First.\n\nLast."),
        ("```python\na = 1\n\nb = 2\n```\nText.", "```python\na = 1\n\nb = 2\n```\n\nText."),
        ("python -m task7.inference --solution", "python -m task7.inference --tuned"),
        ("nothing of it", "nothing of it"),
    ],
)
def test_sentences_rows_and_lines_are_left_out(said: str, left: str) -> None:
    assert for_students(said) == left


@pytest.mark.slow
def test_its_commands_run_and_its_gaps_are_gaps(release: Path, tmp_path: Path) -> None:
    shown = run(release, "-m", "common.course")
    assert shown.returncode == 0 and "watch" in shown.stdout and "grade" not in shown.stdout
    assert "--solution" not in run(release, "-m", "task3.test", "--help").stdout
    place = filled(release, tmp_path / "one", "task3")
    shutil.copyfile(release / "task3/attention.py", place / "task3/attention.py")
    done = run(place, "-m", "task3.test", "--backend", "simulator", "--merge", "--algorithm")
    assert "Points: 0.75 of 2.25" in done.stdout and done.returncode == 1, done.stdout + done.stderr
    assert "not implemented" in done.stdout
    reset = run(place, "-m", "common.course", "reset", "task3")
    assert reset.returncode == 0
    assert (place / "task3/online_softmax.cu").read_bytes() == (release / "task3/online_softmax.cu").read_bytes()


@pytest.mark.long
@pytest.mark.skipif(bool(why_no_bubblewrap()), reason=f"no sandbox here: {why_no_bubblewrap()}")
def test_solved_it_earns_all_points(release: Path, tmp_path: Path) -> None:
    place = filled(release, tmp_path / "solved")
    for task in tasks():
        done = run(place, "-m", f"{task}.test", "--backend", "simulator")
        assert done.returncode == 0, done.stdout + done.stderr
    with workshop("bubblewrap", b"0123456789abcdef" * 2, tasks(), Limits()) as shop:
        ((outcome, _),) = grade_all([str(place)], tmp_path / "out", shop)
    assert outcome.earned == outcome.possible == 18, [part for task in outcome.tasks for part in task.parts if part.why]


def newer(release: Path, folder: Path, **changes: tuple[str, str]) -> Path:
    """A release with some texts changed: name -> (old, new)."""
    shutil.copytree(release, folder)
    for name, (old, new) in changes.items():
        file = folder / name
        file.write_text(file.read_text().replace(old, new))
    record = {n: (folder / n).read_bytes() for n in read_record(release) if (folder / n).is_file()}
    (folder / NAME).write_bytes(written(record))
    return folder


def test_an_update_keeps_the_gaps_and_says_conflicts(release: Path, tmp_path: Path) -> None:
    place = filled(release, tmp_path / "mine", "task5")
    header = "// strided_attention.cu"
    for name in ("task5/strided_attention.cu", "task5/sparse_attention.cu"):
        (place / name).write_text((release / name).read_text().replace("NOT_IMPLEMENTED();", "mine();", 1))
    (place / "task1/given/naive_attention.h").write_text("// changed by me\n")
    (place / "notes.txt").write_text("mine")
    (place / "Results.md").write_text((place / "Results.md").read_text() + "\nmy words\n")
    old = (release / "task5/sparse_attention.cu").read_text()
    gap = next(line for line in old.split("\n") if "NOT_IMPLEMENTED();" in line)
    changes = {
        "task5/strided_attention.cu": (header, header + " (second edition)"),
        "task5/given/start/strided_attention.cu": (header, header + " (second edition)"),
        "task5/sparse_attention.cu": (gap, gap + "  // other words"),
        "task5/given/start/sparse_attention.cu": (gap, gap + "  // other words"),
        "task1/given/naive_attention.h": ("naive", "naive, new"),
        "Results.md": ("# ", "# New "),
    }
    later = newer(release, tmp_path / "later", **changes)
    (later / "task2/given/layer.py").unlink()
    record = json.loads((later / NAME).read_text())
    del record["files"]["task2/given/layer.py"]
    (later / NAME).write_text(json.dumps(record))
    done = update(place, later)
    assert done.conflicts == ["task5/sparse_attention.cu"] and done.removed == ["task2/given/layer.py"]
    assert done.kept_beside == ["task1/given/naive_attention.h"]
    strided = (place / "task5/strided_attention.cu").read_text()
    assert "second edition" in strided and "mine();" in strided
    assert "mine();" in (place / "task5/sparse_attention.cu").read_text()
    assert "<<<<<<< yours" in (place / "task5/sparse_attention.cu.merged").read_text()
    assert (place / "task1/given/naive_attention.h.bak").read_text() == "// changed by me\n"
    assert "my words" in (place / "Results.md").read_text() and "# New " in (place / "Results.md").read_text()
    assert (place / "notes.txt").read_text() == "mine" and not (place / "task2/given/layer.py").exists()
    assert update(place, later).written == []  # again: nothing is new


def test_update_wants_two_releases(release: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a release of this course"):
        update(release, tmp_path)
    with pytest.raises(ValueError, match="this checkout itself"):
        update(release, release)
    with pytest.raises(ValueError, match="is not empty"):
        write_release(release)

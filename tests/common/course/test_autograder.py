"""The zip for Gradescope: its contents, and that it grades in a root file system that has little else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from common.console.paths import ROOT
from common.course.autograder import write_autograder
from common.course.grading.attacking import solution, writes
from common.course.grading.sandbox import why_no_bubblewrap

SALT = b"0123456789abcdef0123456789abcdef"
AS_GRADESCOPE = pytest.mark.skipif(
    os.geteuid() != 0 or bool(why_no_bubblewrap()), reason="needs root, as on Gradescope, and bubblewrap"
)


@pytest.fixture(scope="module")
def autograder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gradescope's /autograder, with the zip unpacked in its source folder."""
    folder = tmp_path_factory.mktemp("gradescope")
    write_autograder(folder / "autograder.zip", SALT, ["task3"])
    place = folder / "autograder"
    subprocess.run([sys.executable, "-m", "zipfile", "-e", folder / "autograder.zip", place / "source"], check=True)
    for name in ("setup.sh", "run_autograder"):
        (place / "source" / name).chmod(0o755)
    return place


def test_it_holds_the_course_the_salt_and_what_gradescope_starts(autograder: Path) -> None:
    with zipfile.ZipFile(autograder.parent / "autograder.zip") as archive:
        modes = {one.filename: one.external_attr >> 16 & 0o777 for one in archive.infolist()}
    assert (modes["setup.sh"], modes["run_autograder"], modes["salt"]) == (0o755, 0o755, 0o600)
    for name in ("task3/cases/hidden.py", "task3/solution/online_softmax.cu", "constraints.txt", "pyproject.toml"):
        assert f"course/{name}" in modes
    assert not [name for name in modes if name.startswith(("course/tests/", "course/docs/", "course/.git/"))]
    source = autograder / "source"
    assert (source / "salt").read_bytes().strip() == SALT
    command = next(line for line in (source / "run_autograder").read_text().splitlines() if " grade " in line)
    assert " --task task3 " in command and "TASKS" not in command
    with pytest.raises(FileExistsError):
        write_autograder(autograder.parent / "autograder.zip", SALT, [])


RECORDING = """#!/bin/sh
echo "${0##*/} $*" >> /autograder/said
if [ "$1 $2" = "-m venv" ]; then
    mkdir -p "$3/bin"; echo : > "$3/bin/activate"
fi
"""


def clean_root(autograder: Path, command: str, *mounts: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs it in a root with /usr, Python, its packages, and /autograder, and without CAP_SYS_ADMIN: no namespaces."""
    places = {Path(one).resolve() for one in (sys.base_prefix, sys.prefix, sysconfig.get_paths()["purelib"])}
    above = sorted({parent for place in places for parent in place.parents} - {Path("/"), Path("/usr")})
    python = [part for place in above for part in ("--perms", "0755", "--dir", str(place))]
    python += [part for place in sorted(places) for part in ("--ro-bind", str(place), str(place))]
    links = [part for name in ("bin", "lib", "lib64", "sbin") for part in ("--symlink", f"usr/{name}", f"/{name}")]
    etc = [
        part for name in ("alternatives", "ld.so.cache", "passwd") for part in ("--ro-bind-try", *[f"/etc/{name}"] * 2)
    ]
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"])
    box = ["bwrap", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--cap-add", "ALL"]
    box += ["--cap-drop", "CAP_SYS_ADMIN", "--ro-bind", "/usr", "/usr", *links, *etc]
    box += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chmod", "1777", "/tmp", *python]
    box += ["--bind", str(autograder), "/autograder", *mounts, "--clearenv", "--setenv", "PATH", path]
    box += [part for name, value in environment.items() for part in ("--setenv", name, value)]
    return subprocess.run([*box, "bash", "-c", command], capture_output=True, text=True, timeout=900)


@AS_GRADESCOPE
def test_setup_installs_what_is_named_and_shuts_the_secrets(autograder: Path, tmp_path: Path) -> None:
    for name in ("apt-get", "python3", "pip"):
        (tmp_path / name).write_text(RECORDING)
        (tmp_path / name).chmod(0o755)
    path = f"/tools:{Path(sys.executable).parent}:/usr/bin:/bin"
    done = clean_root(autograder, "/autograder/source/setup.sh", "--ro-bind", str(tmp_path), "/tools", PATH=path)
    assert done.returncode == 0, done.stderr
    said = (autograder / "said").read_text().splitlines()
    packages = next(line for line in said if line.startswith("apt-get install")).split()
    assert {"python3", "python3-venv", "g++", "git", "bubblewrap"} <= set(packages)
    pips = [line for line in said if line.startswith("pip")]
    assert len(pips) == 2 and all(line.endswith("-c course/constraints.txt") for line in pips)
    assert "install --no-cache-dir --no-deps torch " in pips[0] and "install --no-cache-dir -e course " in pips[1]
    pinned = (autograder / "source" / "course" / "constraints.txt").read_text()
    assert "\ntorch==" in pinned and "\nrich==" in pinned
    closed = [path for path in (autograder / "source").rglob("*") if path.stat().st_mode & 0o077]
    assert not closed and (autograder / "source").stat().st_mode & 0o077 == 0
    assert autograder.stat().st_mode & 0o777 == 0o711


def graded(autograder: Path) -> dict:
    """What Gradescope receives for the submission in place."""
    (autograder / "results").mkdir(exist_ok=True)
    (autograder / "results" / "results.json").write_text("an earlier submission's")
    done = clean_root(autograder, "/autograder/source/run_autograder")
    assert done.returncode == 0, done.stderr
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "common/course/grading/gradescope.schema.json").read_text())
    told = json.loads((autograder / "results" / "results.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(told)
    assert SALT.decode() not in json.dumps(told)
    return told


@AS_GRADESCOPE
def test_that_root_has_no_namespaces_as_on_gradescope(autograder: Path) -> None:
    code = "from common.course.grading.sandbox import choose_kind; print(choose_kind())"
    done = clean_root(autograder, f"cd /autograder/source/course; python -c '{code}'")
    assert done.stdout == "user\n", done.stderr


@pytest.mark.long
@AS_GRADESCOPE
def test_a_submission_that_does_not_compile_gets_its_zero_and_the_reason(autograder: Path) -> None:
    writes({"task3/online_softmax.cu": "no CUDA at all"})(autograder / "submission")
    told = graded(autograder)
    assert told["score"] == 0 and "online_softmax.cu:1: error" in json.dumps(told)
    assert "task3/attention.py: The file is missing." in told["output"]


@AS_GRADESCOPE
def test_a_grader_that_fails_says_that_it_is_not_the_students_fault(autograder: Path) -> None:
    writes({"task3/online_softmax.cu": "no CUDA at all"})(autograder / "submission")
    salt = autograder / "source" / "salt"
    salt.rename(salt.with_name("moved"))
    try:
        (autograder / "source" / "salt").write_bytes(b"x")
        told = graded(autograder)
    finally:
        salt.with_name("moved").replace(salt)
    assert told["score"] == 0 and "this is not your fault" in told["output"]
    assert "salt" in told["extra_data"]["log"]


@pytest.mark.long
@AS_GRADESCOPE
def test_a_right_submission_earns_its_points(autograder: Path) -> None:
    writes(solution("task3"))(autograder / "submission")
    told = graded(autograder)
    assert told["score"] == 3 and told["tests"] and {one["status"] for one in told["tests"]} == {"passed"}

"""The structure of the repository: what is at the top of a task's folder, and what the C++ files include.

import-linter checks which Python module may import which (pyproject.toml); .ci/run runs it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from common.compiling.manifest import read_manifest, tasks
from common.compiling.places import rooms

CXX = (".cu", ".cuh", ".h", ".cpp")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
ALWAYS = {"README.md", "task.json", "__init__.py", "compile.py", "test.py", "given", "cases", "solution"}
OWN_ROOMS = {"task7": {"front_door", "storyteller"}}
THIN = 20  # lines


def listed(folder: Path) -> set[str]:
    return {
        path.name for path in folder.iterdir() if path.name not in ("__pycache__", "build") and ".bak" not in path.name
    }


def sources(folder: Path, recursive: bool = True) -> list[Path]:
    found = folder.rglob("*") if recursive else folder.glob("*")
    return sorted(path for path in found if path.suffix in CXX and "build" not in path.parts)


def included(source: Path) -> list[str]:
    return INCLUDE.findall(source.read_text())


@pytest.mark.parametrize("task", tasks())
def test_the_top_of_a_task(root, task):
    manifest, top = read_manifest(task), listed(root / task)
    assert set(manifest.files) <= top and top >= ALWAYS
    others = top - ALWAYS - set(manifest.files) - {"tools"} - OWN_ROOMS.get(task, set())
    assert all(name.endswith(".py") for name in others), others
    for command in [*others, "compile.py", "test.py"]:
        assert len((root / task / command).read_text().splitlines()) < THIN, command


@pytest.mark.parametrize("task", tasks())
def test_the_solution_holds_the_files_with_gaps_and_no_others(root, task):
    folder = root / task / "solution"
    assert listed(folder) == {"__init__.py", *read_manifest(task).with_gaps}
    for name in read_manifest(task).with_gaps:
        assert "BEGIN SOLUTION" in (folder / name).read_text()


@pytest.mark.parametrize("task", tasks())
def test_what_a_task_includes(root, task):
    """common/cuda, the given headers, and the student's own; none of another task, nor of the fast kernels."""
    own = [name for name in read_manifest(task).files if name.endswith((".h", ".cuh"))]
    allowed = ("common/cuda/", f"{task}/given/")
    for source in sources(root / task):
        for name in included(source):
            assert name.startswith(allowed) or name in own or name in [f"{task}/{one}" for one in own], (source, name)


def test_what_the_shared_headers_include(root):
    """Their own headers, and the simulator's replacements of CUDA's headers."""
    for source in sources(root / "common" / "cuda"):
        for name in included(source):
            assert name.startswith(("common/cuda/", "simulator/")), (source, name)


@pytest.mark.parametrize("room", rooms())
def test_what_a_room_of_kernels_includes(root, room):
    """Its own headers; sparse instantiates the kernel in flash."""
    of_attention = ["common/kernels/flash/"] if room == "sparse" else []
    for source in sources(root / "common" / "kernels" / room):
        for name in included(source):
            assert name.startswith(("common/cuda/", f"common/kernels/{room}/", *of_attention)), (source, name)


def test_every_room_has_its_map(root):
    for room in rooms():
        assert (root / "common" / "kernels" / room / "README.md").is_file(), room


def test_no_folder_is_called_build(root):
    """git, ruff and pytest skip such a folder silently."""
    tops = [root / "common", root / "tests", *(root / task for task in tasks())]
    assert not [path for top in tops for path in top.rglob("build") if path.is_dir()]

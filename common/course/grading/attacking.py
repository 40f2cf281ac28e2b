"""An attack on the grader, and an honest submission for comparison: Attack.

tests/cheats/attacks.py, tests/hostile/attacks.py and tests/variants/attacks.py each define a list ATTACKS. All but
the honest ones target task 3, which has a part in PyTorch and two kernels: "algorithm", "softmax", "merge".
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.compiling.manifest import read_manifest
from common.console.paths import ROOT

TASK = "task3"
KERNELS, PYTHON = f"{TASK}/online_softmax.cu", f"{TASK}/attention.py"
LAUNCHER = (
    "void online_softmax(const float* x, float* y, float* lse, int64_t rows, int64_t cols, cudaStream_t stream) {"
)
LAUNCH = "    online_softmax_kernel<<<static_cast<unsigned>(rows), THREADS, 0, stream>>>(x, y, lse, cols);\n"


@dataclass(frozen=True)
class Attack:
    """A submission and its expected outcome.

    Attributes:
        name: a few words.
        write: write(folder) writes the submission; it may return another path, that of an archive.
        nothing_for: parts that must earn nothing.
        all_for: parts that must earn everything.
        task: the task these parts belong to.
        kinds: the kinds of sandbox in which the outcome is guaranteed; () for all. For example, only bubblewrap blocks
            network access.
    """

    name: str
    write: Callable[[Path], Path | None]
    nothing_for: Sequence[str] = ()
    all_for: Sequence[str] = ()
    task: str = TASK
    kinds: Sequence[str] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that are graded."""
        return tuple(dict.fromkeys((*self.nothing_for, *self.all_for)))


def solution(task: str = TASK) -> dict[str, str]:
    """The files of a correct submission."""
    manifest, found = read_manifest(task), {}
    for name in manifest.files:
        filled = manifest.folder / "solution" / name
        file = filled if filled.is_file() else manifest.folder / name
        found[f"{task}/{name}"] = file.read_text(encoding="utf-8")
    return found


def writes(files: Mapping[str, str | bytes]) -> Callable[[Path], None]:
    """A function that writes these files to a folder."""

    def write(folder: Path) -> None:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode() if isinstance(text, str) else text)

    return write


def with_launcher(body: str, before: str = "") -> dict[str, str]:
    """The solution with the body of the launcher online_softmax replaced, and declarations in front of it."""
    files = solution()
    head, tail = files[KERNELS].split(LAUNCHER)
    rest = tail[tail.index("\n}\n") + 3 :]
    files[KERNELS] = f"{head}{before}\n{LAUNCHER}\n{body}\n}}\n{rest}"
    return files


def with_kernel(old: str, new: str) -> dict[str, str]:
    """The solution with one piece of its text replaced."""
    files = solution()
    assert files[KERNELS].count(old) == 1, old
    files[KERNELS] = files[KERNELS].replace(old, new)
    return files


def with_python(text: str) -> dict[str, str]:
    """The solution with `text` appended, so that the module runs it last."""
    files = solution()
    files[PYTHON] += "\n\n" + text
    return files


def attacks_in(*folders: str) -> list[tuple[str, Attack]]:
    """(folder, attack) pairs from these folders of tests/.

    Raises:
        FileNotFoundError: this checkout has no such tests (a student edition).
    """
    found = []
    if (helpers := str(ROOT / "tests" / "helpers")) not in sys.path:  # as under pytest
        sys.path.append(helpers)
    for folder in folders:
        file = ROOT / "tests" / folder / "attacks.py"
        if not file.is_file():
            raise FileNotFoundError(f"{file} is missing; a student's edition has no attacks")
        spec = importlib.util.spec_from_file_location(f"attacks_{folder}", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found += [(folder, attack) for attack in module.ATTACKS]
    return found

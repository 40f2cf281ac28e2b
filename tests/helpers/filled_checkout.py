"""A copy of the product with all gaps filled: copy_of_the_checkout(folder)."""

import shutil
from pathlib import Path

from common.compiling.manifest import tasks
from common.compiling.skeletons import fill_gaps

ROOT = Path(__file__).resolve().parents[2]


def copy_of_the_checkout(folder: Path) -> Path:
    """Fills `folder`; build outputs are not copied."""
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.bak*")
    for name in ("common", *tasks()):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "Results.md", folder)
    fill_gaps(folder)
    return folder

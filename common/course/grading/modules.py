"""Imports the course's Python modules in a sandbox that has no file of them: those that student code has no use for.

They hold the cases, references, and known mistakes, which compute what students are to write. The grader passes an open
file; only the process that reads it, and its forks, have them.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from importlib.abc import SourceLoader
from importlib.machinery import ModuleSpec


class Modules(SourceLoader):
    """Finds and loads modules.

    Args:
        root: the tree in which their files would be.
        texts: "common/measure/limits.py" -> text.
    """

    def __init__(self, root: str, texts: Mapping[str, str]) -> None:
        self._texts = {f"{root}/{name}": text.encode() for name, text in texts.items()}
        names = {name: name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in texts}
        self._paths = {module: f"{root}/{name}" for name, module in names.items()}

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        path = self._paths.get(name)
        return importlib.util.spec_from_file_location(name, path, loader=self) if path else None

    def get_filename(self, name: str) -> str:
        return self._paths[name]

    def get_data(self, path: str) -> bytes:
        return self._texts[path]


def install(root: str, file: str) -> None:
    """Makes the modules importable that an open file holds as JSON, and closes it."""
    with open(int(file), encoding="utf-8") as opened:
        sys.meta_path.insert(0, Modules(root, json.load(opened)))

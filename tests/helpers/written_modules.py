"""Python modules made from text, in a file, since reports quote their lines."""

import importlib.util
from pathlib import Path
from types import ModuleType


def written_module(file: Path, text: str) -> ModuleType:
    """Writes the file and runs it as a module; sys.modules does not get to know it."""
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""The result of a build: BuildResult, or BuildError."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from common.compiling.gaps import Gap
from common.compiling.report import KernelResources


class BuildError(RuntimeError):
    """A compile failed; the message starts with the compiler's errors on the student's own lines."""


@dataclass(frozen=True)
class BuildResult:
    """What one build did.

    Attributes:
        name: of the library, and of its operators' namespace in torch.ops.
        folder: where it was built.
        library: its path; None if the sources were only compiled.
        seconds: how long it took.
        rebuilt: whether anything had changed.
        warnings: the compiler's warnings on the sources' own lines.
        kernels: ptxas's report.
        gaps: the unfilled gaps.
    """

    name: str
    folder: Path
    library: Path | None
    seconds: float
    rebuilt: bool
    warnings: list[str] = field(default_factory=list)
    kernels: list[KernelResources] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

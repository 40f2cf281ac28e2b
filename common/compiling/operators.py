"""Operators: a variant's compiled operators as attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from common.compiling.gaps import find_gaps, gaps_of_operator, registered_operators


@dataclass(frozen=True)
class Library:
    """A loaded shared library.

    Attributes:
        name: the operators' namespace in torch.ops.
        path: of the file.
        sources: the .cu files and binding.cpp from which it was compiled.
        warnings: the compiler's warnings for them.
        rebuilt: whether it has changed.
    """

    name: str
    path: Path
    sources: tuple[Path, ...]
    warnings: tuple[str, ...] = ()
    rebuilt: bool = False

    @cached_property
    def operators(self) -> frozenset[str]:
        """The names of its operators."""
        return frozenset(registered_operators(self.sources[-1]))


class Operators:
    """The operators of one variant; calling `ops.softmax(x)` runs `torch.ops.<library>.softmax(x)`.

    Attributes:
        task, variant, backend: "task2", "solution" (or a test's own name), "cuda" or "simulator".
        device: the device on which tensors must be.
        libraries: the libraries with the operators.

    Calling an operator raises NotImplementedError (file and line of each gap) while its kernels have unfilled gaps,
    ValueError for a bad argument, RuntimeError for an error inside a kernel.
    """

    def __init__(self, task: str, variant: str, backend: str, libraries: Sequence[Library]) -> None:
        import torch

        self.task = task
        self.variant = variant
        self.backend = backend
        self.device = torch.device("cuda" if backend == "cuda" else "cpu")
        self.libraries = tuple(libraries)
        for library in reversed(self.libraries):  # the first that has an operator wins
            for operator in library.operators:
                setattr(self, operator, self._callable(operator, library))

    def __repr__(self) -> str:
        return f"Operators({self.task}, {self.variant}, {self.backend})"

    @property
    def sources(self) -> list[Path]:
        """The .cu files and bindings of all libraries."""
        return [source for library in self.libraries for source in library.sources]

    def library_of(self, operator: str) -> Library:
        """The library that has this operator.

        Raises:
            AttributeError: no library has it.
        """
        for library in self.libraries:
            if operator in library.operators:
                return library
        known = ", ".join(sorted(name for library in self.libraries for name in library.operators))
        raise AttributeError(f"{self.task} ({self.variant}) has no operator {operator!r}; it has {known}")

    def __getattr__(self, operator: str) -> Callable:
        if operator.startswith("_"):
            raise AttributeError(operator)
        self.library_of(operator)  # raises: __init__ has set all existing ones

    def _callable(self, operator: str, library: Library) -> Callable:
        """The attribute for an operator, created in advance since torch.compile cannot trace the search for gaps."""
        gaps = gaps_of_operator(operator, library.sources)
        if gaps:
            where = "; ".join(map(str, gaps))
            others = len(find_gaps(library.sources)) - len(gaps)
            more = f" (and {others} more gaps)" if others else ""

            def call(*args, **kwargs):
                raise NotImplementedError(f"{self.task} {operator} is not implemented yet: {where}{more}")

            return call
        return self._function(operator, library)

    def _function(self, operator: str, library: Library) -> Callable:
        """The function that runs an operator without gaps."""
        import torch

        from common.compiling.derivatives import guarded

        function = getattr(getattr(torch.ops, library.name), operator).default
        return guarded(f"{self.task} {operator}", self._checked(operator, function), function)

    def _checked(self, operator: str, function: Callable) -> Callable:
        def call(*args, **kwargs):
            try:
                return function(*args, **kwargs)
            except NotImplementedError:  # the dispatcher has no kernel for these tensors' device
                import torch

                tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
                wrong = sorted({x.device.type for x in tensors} - {self.device.type})
                if not wrong:
                    raise
                raise ValueError(
                    f"{self.task} {operator}: a tensor is on {wrong[0]!r}; the {self.backend} backend works on "
                    f"{self.device.type!r} tensors: move it with .to({self.device.type!r})"
                ) from None

        return call

"""Runs calls in the simulator, with a few blocks of each grid, and reads their counters.

counting = Counting(libraries, gpu)
launches = counting.launches(lambda: lambda: ops.softmax(x))     [Launch, ...]
with cheap_inputs(): ...                                  torch.randn gives zeros at no cost in time or memory
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from common.compiling import toolchain
from common.compiling.gaps import find_gaps
from common.compiling.nvcc import compile_only
from common.compiling.operators import Library
from common.compiling.report import KernelResources
from common.compiling.result import BuildError
from common.inspect.checked_library import PROFILE, CheckedLibrary
from common.inspect.profile.model import with_registers
from common.inspect.source_lines import SourceLines
from common.measure.gpus import GpuSpec
from common.predict.counters import SAMPLE, Launch, read_launches
from common.predict.registers import estimated_registers

PATIENCE = "600"  # seconds that a block may take: for a large shape it runs long without being deadlocked


class Counting:
    """Collects counters in these libraries, all built in the simulator's checked mode.

    Args:
        libraries: see Operators.libraries.
        gpu: the GPU for which nvcc reports registers.
        sample: simulated blocks per grid.
        use_nvcc: False: estimate registers even if nvcc is installed.
    """

    def __init__(self, libraries: Sequence[Library], gpu: GpuSpec, sample: int = SAMPLE, use_nvcc: bool = True) -> None:
        os.environ.setdefault("SIMULATOR_TIMEOUT", PATIENCE)
        self.sample = sample
        self._libraries = list(dict.fromkeys(libraries))
        self._loaded = [CheckedLibrary(one.path) for one in self._libraries]
        self._lines = [SourceLines(one.path) for one in self._libraries]
        self._registers = [Registers(one.sources, gpu, use_nvcc) for one in self._libraries]

    def launches(self, prepare: Callable[[], Callable[[], object]]) -> list[Launch]:
        """The launches of the call that `prepare` returns. Those in `prepare` itself end at once, without computing."""
        try:
            self._begin(PROFILE, -1)
            call = prepare()
            self._begin(PROFILE, self.sample)
            call()
            reports = [one.report() for one in self._loaded]
        finally:
            self._begin(0, 0)
        both = zip(reports, self._lines, self._libraries, self._registers, strict=True)
        return [
            registers.known(launch)
            for report, lines, library, registers in both
            if report["kernels"]
            for launch in read_launches(report, lines, library.path)
        ]

    def _begin(self, mode: int, sample: int) -> None:
        for one in self._loaded:
            one.sample(sample)
            one.begin(mode)


class Registers:
    """The registers of the kernels in some files: from nvcc if available, otherwise estimated from the source."""

    def __init__(self, sources: Sequence[Path], gpu: GpuSpec, use_nvcc: bool = True) -> None:
        self._sources = [source for source in sources if source.suffix == ".cu"]
        self._gpu, self._use_nvcc = gpu, use_nvcc
        self._told: list[KernelResources] | None = None

    def _from_nvcc(self) -> list[KernelResources]:
        if self._told is None:
            self._told = []
            if self._use_nvcc and toolchain.find_nvcc() and not find_gaps(self._sources):
                with suppress(BuildError):  # the simulator's compiler accepted it, which suffices for an estimate
                    self._told = compile_only(self._sources, self._gpu.arch).kernels
        return self._told

    def known(self, launch: Launch) -> Launch:
        """The launch with its registers."""
        told = self._from_nvcc()
        kernel, registers_from = with_registers(launch.kernel, told), "nvcc"
        if not kernel.registers:  # launched through a pointer, or in a namespace: use the functions of its lines
            places = [place for one in kernel.lines if one.place for place in (*one.place.outer, one.place)]
            names = dict.fromkeys([kernel.kernel, *(place.function for place in places)])
            bare = [name.split("<")[0].split("::")[-1] for name in names]
            counts = {one.registers for one in told if one.name.split("<")[0].split("::")[-1] in bare}
            if not counts:
                files = sorted({Path(place.file) for place in places}, key=lambda file: file not in self._sources)
                text = "\n".join(file.read_text(errors="replace") for file in files or self._sources)
                counts, registers_from = {max(estimated_registers(text, name) for name in bare)}, "estimate"
            kernel = replace(kernel, registers=max(counts), registers_vary=len(counts) > 1)
        return replace(launch, kernel=kernel, registers_from=registers_from)


@contextmanager
def cheap_inputs() -> Iterator[None]:
    """Inside, torch.randn and torch.rand give zeros in untouched memory, so that even GBs of inputs cost nothing.

    Kernels whose work depends on the data are predicted for zeros. Draws from a generator are unaffected.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class Zeros(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            given = function in (torch.randn, torch.rand) and "generator" not in kwargs  # with one: e.g. a pattern
            return (torch.zeros if given else function)(*args, **kwargs)

    with Zeros():
        yield

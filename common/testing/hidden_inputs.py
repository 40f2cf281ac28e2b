"""Calls operators with inputs that only kernels can see: what host code computes from them shows.

    caller = HiddenInputs(ops)
    caller.hide = True
    caller.call(case, inputs)       caller.more == {"launches": 3, "threads": 4096, "read_back": 0, "work": 81920, ...}

In the simulator a tensor lies in memory that host code can use, which a GPU's it cannot. Here the inputs lie in pages
of their own that are open while a kernel or a copy of the CUDA API runs and closed otherwise: a loop on the host, or
PyTorch called from the launcher, dies of SIGSEGV. Outputs are not filled in this call, so a kernel that waits for NaN
in them gives itself away as well. Inputs that the case names in `in_place` stay open, since the case reads them
itself.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import replace

import torch
from torch import Tensor

from common.measure.allocations import AllocationRecorder
from common.testing.calling import POISONED, Around, Called, CallFailed, InProcess
from common.testing.case import Case

WORK = ("work", "most_work", "work_of_block", "most_of_block")  # see common/simulator/runtime/work.cpp


class HiddenInputs(InProcess):
    """InProcess; while `hide` is set, as said above. Operators of the simulator only.

    While `watch` is set, `more` names PyTorch's operators that were called: {"operators": ["aten::mm", ...]}.
    """

    def __init__(self, ops) -> None:
        super().__init__(ops)
        self.hide = self.watch = False

    def call(self, case: Case, inputs: dict[str, Tensor], around: Around = POISONED) -> Called:
        """See Caller.call."""
        self.more = {}
        if self.watch:
            with AllocationRecorder(self.device) as made:
                called = super().call(case, inputs, around)
                if called.out is not None:  # what is put off until somebody looks is seen as well
                    called = replace(called, out=called.out.detach().cpu().clone())
            self.more = {"operators": sorted(made.operators)}
            return called
        if not self.hide:
            return super().call(case, inputs, around)
        libraries = [ctypes.CDLL(str(path)) for path in self.libraries]
        pages = {name: Pages(x) for name, x in inputs.items()}
        for library in libraries:
            _launches(library)
            _work([library])
            for name, page in pages.items():
                if name not in case.in_place:
                    library.simulator_hide(ctypes.c_void_p(page.address), ctypes.c_size_t(page.bytes))
        try:
            with torch.no_grad():
                out = case.call(self.ops, **{name: page.tensor for name, page in pages.items()})
        except (Exception, SystemExit) as error:
            raise CallFailed.because(error) from error
        finally:
            self.more = self._counts(libraries)
        changed = [n for n, page in pages.items() if n not in case.in_place and not torch.equal(page.bits(), page.kept)]
        problems = [f"The input {name} was changed; the operator must only read it." for name in changed]
        if type(out) is not Tensor:
            return Called(None, type(out).__name__, "", problems)
        return Called(out.clone(), "Tensor", str(out.device), problems)

    @staticmethod
    def _counts(libraries: list[ctypes.CDLL]) -> dict[str, int]:
        read_back = 0
        for library in libraries:
            library.simulator_show.restype = ctypes.c_uint64
            read_back += library.simulator_show()
        counted = [_launches(library) for library in libraries]
        return {
            "launches": sum(launches for launches, _ in counted),
            "threads": max((threads for _, threads in counted), default=0),
            "read_back": read_back,
            **_work(libraries),
        }


def _launches(library: ctypes.CDLL) -> tuple[int, int]:
    """(launches since the last call, threads of the largest of them)."""
    launches, threads = ctypes.c_uint64(), ctypes.c_uint64()
    library.simulator_launches(ctypes.byref(launches), ctypes.byref(threads))
    return launches.value, threads.value


def _work(libraries: list[ctypes.CDLL]) -> dict[str, int]:
    """What the threads did since the last call, in basic blocks; 0 but in a counted build."""
    total = dict.fromkeys(WORK, 0)
    for library in libraries:
        four = (ctypes.c_uint64 * len(WORK))()
        library.simulator_work(four)
        total = {name: before + now for (name, before), now in zip(total.items(), four, strict=True)}
    return total


class Pages:
    """A copy of a tensor in whole pages of its own."""

    def __init__(self, value: Tensor) -> None:
        size = max(1, value.numel() * value.element_size())
        self.bytes = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, self.bytes)
        self._whole = torch.frombuffer(self._map, dtype=value.dtype, count=value.numel()) if value.numel() else value
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.tensor = self._whole.view(value.shape)
        self.tensor.copy_(value)
        self.kept = self.bits().clone()

    def bits(self) -> Tensor:
        """The bytes, as they are now."""
        return self._whole.view(torch.uint8)

"""Measures the memory that PyTorch code allocates beyond its inputs, and which line allocates it.

with AllocationRecorder(inputs=(query, key, value)) as made:
    out = flash_attention(query, key, value)
made.peak_bytes, made.largest                   peak bytes; the largest tensor, with its line

python -m task3.memory [--solution]             flash_attention compared with attention that stores S, for growing S
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from common.console.paths import shown_path


@dataclass(frozen=True)
class MadeTensor:
    """A tensor with its own storage: its shape, the storage's bytes, the operator that made it, and the line."""

    shape: tuple[int, ...]
    bytes: int
    operator: str
    file_line: str


class AllocationRecorder(TorchDispatchMode):
    """Records all memory that PyTorch's operators use, except the inputs': new tensors, and earlier ones that are
    reused. Views and in-place results are not new memory.

    On the CPU, internal workspaces of operators are not counted. On a GPU, `peak_bytes` is PyTorch's
    torch.cuda.max_memory_allocated, which includes them.

    Args:
        device: the device whose memory is recorded.
        line: returns the current line, "file.py:57"; None: it is taken from the stack.
        inputs: tensors whose memory is not counted unless it is written to.
        source: one of the inputs.
        partner: another input, whose elements are combined with those of `source`.

    Attributes:
        largest: the largest tensor; None if there was none.
        peak_bytes: the most bytes alive at once since entering.
        peak_from_source: the same for tensors computed from `source`, or written to in such a computation. Elements
            narrower than those of `source` count with its element size: a row in float16 is still a row.
        read: the line where Python first read a number, not just a bool, from such a tensor; "" if none did.
        met: number of elements of `partner`, or computed from it alone, that operators combined with such tensors; two
            viewed as one wider element count as two.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        line: Callable[[], str] | None = None,
        inputs: Sequence[Tensor] = (),
        source: Tensor | None = None,
        partner: Tensor | None = None,
    ) -> None:
        super().__init__()
        self._line = line or _calling_line
        self._inputs = {_memory_of(x) for x in inputs}
        self._known = set(self._inputs)
        self._from_source = {_memory_of(source): 0} if source is not None else {}  # memory -> bytes
        self._source_bytes = source.element_size() if source is not None else 0
        # memory -> bytes per element
        self._from_partner = {_memory_of(partner): partner.element_size()} if partner is not None else {}
        self.met, self.read = 0, ""
        self.largest: MadeTensor | None = None
        self.peak_bytes = self.peak_from_source = 0
        self._operators: set = set()
        self._alive_bytes = 0
        self._on_gpu = torch.device(device).type == "cuda"
        self._before = 0

    @property
    def operators(self) -> set[str]:
        """The names of all operators that ran, such as "aten.bmm.default"."""
        return set(map(str, self._operators))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and importing torch._dynamo takes seconds

    def __enter__(self) -> AllocationRecorder:
        if self._on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        return super().__enter__()

    def __exit__(self, *exception) -> None:
        super().__exit__(*exception)
        if self._on_gpu:
            self.peak_bytes = torch.cuda.max_memory_allocated() - self._before

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = list(_tensors((*args, *kwargs.values())))
        result = operator(*args, **kwargs)
        if self._is_derived(given) and isinstance(result, Number) and not isinstance(result, bool):
            self.read = self.read or self._line()
        self._operators.add(operator)
        written = list(_written(operator, args, kwargs))
        for x in written:
            self._known -= {_memory_of(x)} & self._inputs
            self._inputs.discard(_memory_of(x))
        results = [*_tensors((result,)), *written]
        for x in (*given, *results):
            if _memory_of(x) not in self._known:
                self._record(x, str(operator))
        self._computed(given, results, written)
        return result

    def follow(self, given: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Counts `results` as computed from `given`, unless an operator has: PyTorch reads lists of tensors without."""
        seen = {*self._from_source, *self._from_partner}
        self._computed(given, [x for x in results if _memory_of(x) not in seen])

    def _is_derived(self, given: Sequence[Tensor]) -> bool:
        return any(_memory_of(x) in self._from_source for x in given)

    def _computed(self, given: Sequence[Tensor], results: Sequence[Tensor], written: Sequence[Tensor] = ()) -> None:
        partners = [x for x in given if _memory_of(x) in self._from_partner]
        if results and self._is_derived(given):
            for x in partners:  # expanded elements count once
                once = math.prod(size for size, step in zip(x.shape, x.stride(), strict=True) if step)
                self.met += round(once * self._numbers(x))
            self._derived(results)
        elif partners:
            numbers = max(map(self._numbers, partners))
            views = {_memory_of(x) for x in partners} - {_memory_of(x) for x in written}
            for x in results:  # conversions and copies contain the same number of elements
                if _memory_of(x) in views:
                    continue
                memory, size = _memory_of(x), x.element_size() / numbers
                self._from_partner[memory] = min(self._from_partner.get(memory, size), size)

    def _derived(self, results: Sequence[Tensor]) -> None:
        for x in results:
            if (memory := _memory_of(x)) not in self._inputs:
                size = max(_bytes_of(x), _bytes_of(x) // x.element_size() * self._source_bytes)
                self._from_source[memory] = max(self._from_source.get(memory, 0), size)
        self.peak_from_source = max(self.peak_from_source, sum(self._from_source.values()))

    def _numbers(self, x: Tensor) -> float:
        """How many of the partner's elements each element of x contains."""
        return x.element_size() / self._from_partner[_memory_of(x)]

    def _record(self, x: Tensor, operator: str) -> None:
        memory, size = x.untyped_storage(), _bytes_of(x)
        self._known.add(memory._cdata)
        self._alive_bytes += size
        if not self._on_gpu:
            self.peak_bytes = max(self.peak_bytes, self._alive_bytes)
        weakref.finalize(memory, self._freed, memory._cdata, size).atexit = False
        if self.largest is None or size > self.largest.bytes:
            self.largest = MadeTensor(tuple(x.shape), size, operator, self._line())

    def _freed(self, memory: int, size: int) -> None:
        self._alive_bytes -= size
        self._known.discard(memory)
        self._from_source.pop(memory, None)
        self._from_partner.pop(memory, None)


def _written(operator, args: tuple, kwargs: Mapping) -> Iterator[Tensor]:
    """The arguments that an operator writes to."""
    for number, about in enumerate(operator._schema.arguments):
        if about.alias_info is not None and about.alias_info.is_write:
            yield from _tensors((args[number] if number < len(args) else kwargs.get(about.name),))


def _tensors(values: Iterable) -> Iterator[Tensor]:
    """The tensors among an operator's arguments or results, including those in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (x for x in value if isinstance(x, Tensor))


def _memory_of(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def _bytes_of(x: Tensor) -> int:
    return x.untyped_storage().nbytes()


def _calling_line() -> str:
    """ "file.py:57": the innermost line on the stack outside PyTorch and this file."""
    torch_folder = str(Path(torch.__file__).parent)
    frame = sys._getframe(1)
    while frame.f_back and (frame.f_code.co_filename == __file__ or frame.f_code.co_filename.startswith(torch_folder)):
        frame = frame.f_back
    return f"{shown_path(Path(frame.f_code.co_filename))}:{frame.f_lineno}"

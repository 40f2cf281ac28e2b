"""Sends keys and values to other ranks through the copy engines, if all GPUs of a group are in one host.

    copies = copies_of(group, (key, value))     None if not possible: several hosts, CPUs, too many bytes
    copies.offer((key, value))                  ready in the order of the current stream
    key, value = copies.received(rank)          that rank's; the stream waits for them, not the host
    copies.done()                               the received tensors are no longer needed

Why not just NCCL: its kernels occupy SMs for the duration of a transfer, and the attention kernels statically assign
their work to all SMs, so that a step takes that much longer. A copy engine needs no SMs. Each rank has buffers in
PyTorch's symmetric memory that the others can write to, one for every other rank, and a signal tells the owner when
data has arrived. A barrier after done(), on a separate stream, ensures that all buffers are free before any rank writes
to them in the next call.

The copies are issued by the first received(), not by offer(): call it after launching the first step, which then does
not wait for the host. The buffers live as long as the process.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

MOST_BYTES = 2**30  # of a rank's buffers; beyond that, a transfer is short compared with a step
FREE, ARRIVED = range(2)  # signal channels
_made: dict[tuple[str, torch.device], Copies | None] = {}  # by group; None: not possible


class Copies:
    """The buffers of every rank.

    Args:
        size: of a buffer, in bytes; the same on every rank.

    Raises:
        RuntimeError: the GPUs cannot write to each other's memory, or symmetric memory does not use the CUDA backend.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, size: int) -> None:
        from torch._C._distributed_c10d import _SymmetricMemory
        from torch.distributed import _symmetric_memory as symmetric

        if symmetric.get_backend(device) not in (None, "CUDA"):  # None: not chosen yet, defaults to CUDA
            raise RuntimeError(f"symmetric memory is {symmetric.get_backend(device)!r} here; it must be 'CUDA'")
        self._write = _SymmetricMemory.stream_write_value32
        self.size, self._rank, self._ranks = size, group.rank(), group.size()
        self._timeout = int(group._get_backend(device).options._timeout.total_seconds() * 1000)
        self._own = symmetric.empty((self._ranks - 1) * size, dtype=torch.uint8, device=device)
        self._all = symmetric.rendezvous(self._own, group)
        self._stream = torch.cuda.Stream(device)
        self._places: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        self._offered: tuple[Tensor, ...] = ()
        self._layout: list = []

    def offer(self, tensors: Sequence[Tensor]) -> None:
        """Sets the tensors that the other ranks will receive.

        Args:
            tensors: contiguous, of the same shapes and dtypes on every rank; size_of(tensors) is at most size.
        """
        layout = [(x.shape, x.dtype) for x in tensors]
        if layout != self._layout:
            self._layout, self._places = layout, {}
        self._offered, self._sent = tuple(tensors), None
        self._complete = torch.cuda.current_stream().record_event()

    def received(self, rank: int) -> tuple[Tensor, ...]:
        """The tensors that `rank` offered; valid until done()."""
        if self._sent is None:
            self._send()
        torch.cuda.current_stream().wait_event(self._sent)  # their owner may modify them after the call
        self._all.wait_signal(rank, ARRIVED, self._timeout)
        return self._place(self._rank, rank)

    def done(self) -> None:
        """Ends the exchange that offer() began; every rank calls it."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._all.barrier(FREE, self._timeout)
        self._offered = ()

    def _send(self) -> None:
        self._stream.wait_event(self._complete)
        with torch.cuda.stream(self._stream):
            for distance in range(1, self._ranks):  # in the order in which they are needed
                to = (self._rank + distance) % self._ranks
                for place, x in zip(self._place(to, self._rank), self._offered, strict=True):
                    place.copy_(x, non_blocking=True)
                self._sent = self._stream.record_event()
                # like put_signal, but by the copy engine: put_signal's kernel would wait for the step to end
                self._write(self._all.get_signal_pad(to), self._ranks * ARRIVED + self._rank, 1)

    def _place(self, at: int, of: int) -> tuple[Tensor, ...]:
        """The buffer in which rank `at` receives the tensors of rank `of`."""
        if (at, of) not in self._places:
            views, start = [], (at - of - 1) % self._ranks * self.size
            for shape, dtype in self._layout:
                views.append(self._all.get_buffer(at, shape, dtype, start // dtype.itemsize))
                start += _rounded(views[-1].nbytes)
            self._places[at, of] = tuple(views)
        return self._places[at, of]


def copies_of(group: dist.ProcessGroup | None, tensors: Sequence[Tensor]) -> Copies | None:
    """Buffers for these tensors, allocated on the first call: then, and when they are too small, all ranks must call.

    Args:
        tensors: what will be offered, with the same shapes and dtypes on every rank.
    """
    device, size, group = tensors[0].device, size_of(tensors), group or dist.group.WORLD
    if device.type != "cuda" or dist.get_backend(group) != "nccl" or size * (group.size() - 1) > MOST_BYTES:
        return None
    name = group.group_name, device
    if name not in _made or (_made[name] and _made[name].size < size):
        if name in _made:  # data that has arrived may still be read
            torch.cuda.synchronize(device)
            dist.barrier(group)
        _made[name] = _made_by_all(group, device, size)
    return _made[name]


def size_of(tensors: Sequence[Tensor]) -> int:
    """Bytes of a buffer for these tensors."""
    return sum(_rounded(x.nbytes) for x in tensors)


def _made_by_all(group: dist.ProcessGroup, device: torch.device, size: int) -> Copies | None:
    """Makes a Copies if every rank can; otherwise None."""
    hosts: list = [None] * group.size()
    dist.all_gather_object(hosts, (socket.gethostname(), Path("/proc/sys/kernel/random/boot_id").read_text()), group)
    if len(set(hosts)) > 1:
        return None
    try:
        made = Copies(group, device, size)
    except (RuntimeError, ImportError, AttributeError):  # no peer access, or a different PyTorch API
        made = None
    everyones = torch.tensor(float(made is not None), device=device)
    dist.all_reduce(everyones, dist.ReduceOp.MIN, group)
    return made if everyones.item() else None


def _rounded(size: int) -> int:
    return -(-size // 256) * 256

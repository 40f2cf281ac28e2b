"""Keys and values of other ranks through the copy engines, where all GPUs of a group are in one host.

    copies = copies_of(group, (key, value))     None where it cannot be: several hosts, CPUs, too many bytes
    copies.offer((key, value))                  the others may fetch them, and these may fetch theirs
    on_its_way = copies.fetch(rank)
    key, value = on_its_way.arrived()           starts the copy; the stream waits for it, not the host

Why not NCCL alone: its kernels hold multiprocessors as long as a journey takes, and the attention kernels deal their
work out to all of them beforehand, so that a step takes longer by the journey. A copy engine needs none. Call arrived()
when the step is under way: then its kernel does not wait for the host to ask for copies.

Each rank has two places in PyTorch's symmetric memory, which all GPUs of the group can read, and offers its keys in one
and the other in turn. A barrier behind the copy there says that all have offered theirs. Who passes it in one call has
ended the last one, so what was offered then may be overwritten in the next. The places stay for the life of the process.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

MOST_BYTES = 2**30  # that a rank offers; where there are more, a journey is short beside a step
_made: dict[tuple[str, torch.device], Copies | None] = {}  # by group; None: it cannot be


class Fetched:
    """What a rank offers, on its way here."""

    def __init__(self, sources: Sequence[Tensor], stream: torch.cuda.Stream) -> None:
        self._sources, self._stream = sources, stream
        self._coming = tuple(map(torch.empty_like, sources))
        self._free = torch.cuda.current_stream().record_event()  # nobody uses the memory of _coming any more

    def arrived(self) -> tuple[Tensor, ...]:
        """The tensors, for the current stream."""
        self._stream.wait_event(self._free)
        with torch.cuda.stream(self._stream):
            for coming, source in zip(self._coming, self._sources, strict=True):
                coming.copy_(source, non_blocking=True)
        torch.cuda.current_stream().wait_stream(self._stream)
        return self._coming


class Copies:
    """The two places of every rank.

    Args:
        size: of a place, bytes; the same on every rank.

    Raises:
        RuntimeError: the GPUs cannot read each other's memory.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, size: int) -> None:
        from torch.distributed import _symmetric_memory as symmetric

        self.size, self._turn = size, 0
        self._timeout = int(group._get_backend(device).options._timeout.total_seconds() * 1000)
        self._own = symmetric.empty(2 * size, dtype=torch.uint8, device=device)
        self._all = symmetric.rendezvous(self._own, group)
        self._stream = torch.cuda.Stream(device)

    def offer(self, tensors: Sequence[Tensor]) -> None:
        """Copies contiguous tensors to where the others may fetch them, and waits, on the stream, for theirs.

        Args:
            tensors: of the same shapes and dtypes on every rank; size_of(tensors) is at most size.
        """
        self._turn, self._offered = 1 - self._turn, tuple(tensors)
        for place, tensor in zip(self._places(self._all.rank), tensors, strict=True):
            place.copy_(tensor)
        self._all.barrier(channel=0, timeout_ms=self._timeout)

    def fetch(self, rank: int) -> Fetched:
        """What that rank offers; it comes once arrived() is called."""
        return Fetched(self._places(rank), self._stream)

    def _places(self, rank: int) -> list[Tensor]:
        """Where that rank offers its tensors."""
        places, at = [], self._turn * self.size
        for x in self._offered:
            places.append(self._all.get_buffer(rank, x.shape, x.dtype, at // x.element_size()))
            at += _rounded(x.nbytes)
        return places


def copies_of(group: dist.ProcessGroup | None, tensors: Sequence[Tensor]) -> Copies | None:
    """Places for these tensors, made at the first call: then, and when they are too small, all ranks must call.

    Args:
        tensors: what will be offered, of the same shapes and dtypes on every rank.
    """
    device, size, group = tensors[0].device, size_of(tensors), group or dist.group.WORLD
    if device.type != "cuda" or dist.get_backend(group) != "nccl" or size > MOST_BYTES:
        return None
    name = group.group_name, device
    if name not in _made or (_made[name] and _made[name].size < size):
        if name in _made:  # somebody may still read what was offered
            torch.cuda.synchronize(device)
            dist.barrier(group)
        _made[name] = _made_by_all(group, device, size)
    return _made[name]


def size_of(tensors: Sequence[Tensor]) -> int:
    """Bytes of a place for these tensors."""
    return sum(_rounded(x.nbytes) for x in tensors)


def _made_by_all(group: dist.ProcessGroup, device: torch.device, size: int) -> Copies | None:
    """Copies, if every rank can have them."""
    hosts: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(hosts, (socket.gethostname(), Path("/proc/sys/kernel/random/boot_id").read_text()), group)
    if len(set(hosts)) > 1:
        return None
    try:
        made = Copies(group, device, size)
    except (RuntimeError, ImportError, AttributeError):  # no access from GPU to GPU, or a PyTorch that has it otherwise
        made = None
    everyones = torch.tensor(float(made is not None), device=device)
    dist.all_reduce(everyones, dist.ReduceOp.MIN, group)
    return made if everyones.item() else None


def _rounded(size: int) -> int:
    return -(-size // 256) * 256

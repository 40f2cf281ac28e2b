"""Communication between ranks, and the error when a rank doesn't respond.

    travel = Travel((key, value), group, ...)   sends them to the next rank of the ring and receives the previous one's,
                                                in the background
    key, value = travel.arrived()               waits for them (on a GPU, the stream waits, not the host)
    exchange(x, group)                          all-to-all: sends piece r of x to rank r, receives its piece

The process group communicates: NCCL on GPUs, gloo on CPUs. Its timeout bounds every wait: gloo then raises, which
becomes a RankLost here; NCCL's watchdog ends the process with its own message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from common.console.words import first_line


class RankLost(RuntimeError):
    """A rank did not send or receive as agreed; the message names this rank, the other one, and what was awaited."""


def asked(what: str, group: dist.ProcessGroup | None, function: Callable, /, *args, **kwargs):
    """Calls function(*args, **kwargs) and raises its errors as RankLost. `what`: such as "keys from rank 2"."""
    try:
        return function(*args, **kwargs)
    except (RuntimeError, dist.DistBackendError) as error:
        raise RankLost(
            f"rank {dist.get_rank(group)} of {dist.get_world_size(group)}: {what} did not come: {first_line(error)}. "
            "Did another rank end, or not make the same call? The longest wait is the process group's timeout"
        ) from error


class Travel:
    """One step around the ring: sends tensors to the next rank and receives the previous one's at the same time.

    Args:
        sent: contiguous; with the same shapes and dtypes on every rank. They must not change before arrived().
        what: what they are, for errors: "keys and values".
    """

    def __init__(self, sent: Sequence[Tensor], group: dist.ProcessGroup | None, what: str) -> None:
        self._group, self._sent, self._coming = group, tuple(sent), tuple(map(torch.empty_like, sent))
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        to, of = (rank + 1) % ranks, (rank - 1) % ranks
        self._what = f"{what} from rank {of}"
        operations = [
            dist.P2POp(function, tensor, group=group, group_peer=peer, tag=tag)
            for tag, (out, coming) in enumerate(zip(self._sent, self._coming, strict=True))
            for function, tensor, peer in ((dist.isend, out, to), (dist.irecv, coming, of))
        ]
        self._works = asked(self._what, group, dist.batch_isend_irecv, operations)

    def arrived(self) -> tuple[Tensor, ...]:
        """What the previous rank sent, with the shapes of what this one sent."""
        for work in self._works:
            asked(self._what, self._group, work.wait)
        return self._coming


def exchange(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """[ranks, ...] -> [ranks, ...]: piece r goes to rank r, and piece r of the result comes from rank r. Contiguous."""
    x = x.contiguous()
    coming = torch.empty_like(x)
    asked("a piece of every rank", group, dist.all_to_all_single, coming, x, group=group)
    return coming

"""What goes from rank to rank, and what is said when nobody answers.

    travel = Travel(x, group)       x goes to the next rank of the ring, the previous one's comes, in the background
    other = travel.arrived()        waits for it (on a GPU: the stream does, not the host)
    exchange(x, group)              piece r of x goes to rank r; each rank's piece for this one comes

The process group does the talking: NCCL on GPUs, gloo on CPUs. Its timeout is the longest that anybody waits: gloo
raises then, which becomes a RankLost here; NCCL's watchdog ends the process, after a message of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor


class RankLost(RuntimeError):
    """A rank did not send or take what was agreed; the message names this rank, the other one, and what was awaited."""


def asked(what: str, group: dist.ProcessGroup | None, function: Callable, /, *args, **kwargs):
    """function(*args, **kwargs), its errors as RankLost. `what`: "keys from rank 2"."""
    try:
        return function(*args, **kwargs)
    except (RuntimeError, dist.DistBackendError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RankLost(
            f"rank {dist.get_rank(group)} of {dist.get_world_size(group)}: {what} did not come: {first}. Did another "
            "rank end, or not make the same call? The longest wait is the process group's timeout"
        ) from error


class Travel:
    """One step around the ring: sends x to the next rank and takes the previous one's, both at the same time.

    Args:
        x: contiguous; of the same shape and dtype on every rank. It must not change before arrived().
        what: of what it is, for errors: "keys and values".
    """

    def __init__(self, x: Tensor, group: dist.ProcessGroup | None, what: str) -> None:
        self._group, self._sent, self._coming = group, x, torch.empty_like(x)
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        to, self._of = (rank + 1) % ranks, (rank - 1) % ranks
        self._what = f"{what} from rank {self._of}"
        peers = [(dist.isend, x, to), (dist.irecv, self._coming, self._of)]
        operations = [dist.P2POp(function, tensor, group=group, group_peer=peer) for function, tensor, peer in peers]
        self._works = asked(self._what, group, dist.batch_isend_irecv, operations)

    def arrived(self) -> Tensor:
        """What the previous rank sent, of x's shape."""
        for work in self._works:
            asked(self._what, self._group, work.wait)
        return self._coming


def exchange(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """[ranks, ...] -> [ranks, ...]: piece r goes to rank r, and piece r of the result comes from rank r. Contiguous."""
    x = x.contiguous()
    coming = torch.empty_like(x)
    asked("a piece of every rank", group, dist.all_to_all_single, coming, x, group=group)
    return coming

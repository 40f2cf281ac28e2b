"""Raises, on every rank, if a rank's arguments are invalid or the ranks disagree, before anything large is sent.

Each rank sends the others the facts of its call, a short text. A rank whose own arguments are invalid takes part, too,
or the others would wait for it: afterward it raises its error, and they raise one that names it. A rank that never
takes part is detected by the process group's timeout.
"""

from __future__ import annotations

import json

import torch
import torch.distributed as dist

from common.kernels.distributed.transfers import asked

SIZE = 1024  # bytes of a rank's text


def agree(facts: dict[str, str], fault: str | None, group: dist.ProcessGroup | None) -> None:
    """Compares the facts with those of the other ranks.

    Args:
        facts: name -> value; the same names everywhere.
        fault: what is wrong with this rank's arguments, or None.

    Raises:
        ValueError: on every rank: this rank's fault; or whose arguments were refused; or the first fact that differs,
            with every rank's value.
        RankLost: a rank did not take part.
    """
    said = _everyones({"fault": bool(fault), **facts}, group)
    if fault:
        raise ValueError(fault)
    if faulty := [str(rank) for rank, one in enumerate(said) if one["fault"]]:
        raise ValueError(f"rank {', '.join(faulty)} refused its arguments; its own error says why")
    for name in facts:
        values = [one[name] for one in said]
        if len(set(values)) > 1:
            listed = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
            raise ValueError(f"{name} must be the same on every rank; it is {listed}")


def _everyones(facts: dict, group: dist.ProcessGroup | None) -> list[dict]:
    """Gathers the facts of all ranks, by rank."""
    device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
    text = json.dumps(facts).encode().ljust(SIZE)
    mine = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    asked("every rank's call", group, dist.all_gather, everyones, mine, group=group)
    return [json.loads(bytes(one.tolist())) for one in everyones]

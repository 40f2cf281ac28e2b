"""Attention over a sequence split across several ranks, each with a share of the tokens.

    dist.init_process_group("nccl")                         torchrun --nproc-per-node 2 ...
    local = shard(query), shard(key), shard(value)          who holds which tokens: shards.py
    out = sequence_parallel_attention(*local, causal=True)
    whole = unshard(out)

`ring` and `ulysses` implement it; README.md says which is faster when.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from common.kernels.attention import attention
from common.kernels.distributed.agreement import agree
from common.kernels.distributed.ring import ring_attention
from common.kernels.distributed.ulysses import ulysses_attention
from common.kernels.loaded import loaded

METHODS = ("ring", "ulysses", "auto")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DEVICE_OF = {"nccl": "cuda", "gloo": "cpu"}
SHAPE = "[batch, heads, tokens of this rank, head_dim]"


def sequence_parallel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    group: dist.ProcessGroup | None = None,
    causal: bool = False,
    method: str = "auto",
    scale: float | None = None,
    check: bool = True,
) -> Tensor:
    """softmax(scale * query @ key^T, masked) @ value over the tokens of all ranks. Differentiable.

    Every rank of the group calls it with its shard of the tokens, see shards.py, and gets the results of its own
    queries. Scores, softmax and sums are float32; partial results are merged in float32. Memory per rank is linear in
    S / ranks.

    Args:
        query: [batch, heads, S_q / ranks, head_dim], float32, float16 or bfloat16; head_dim is 1 .. 128. On a GPU with
            NCCL; on the CPU with gloo, where the simulator runs the kernels.
        key, value: [batch, kv_heads, S_k / ranks, head_dim], of query's dtype; heads is a multiple of kv_heads.
        group: a process group; None: the default one.
        causal: query i sees keys j <= i, by their positions in the whole sequence; S_q must equal S_k.
        method: "ring": the keys are passed around; "ulysses": the heads are distributed, heads must be a multiple
            of the number of ranks; "auto": ulysses if a gradient is needed and heads and kv_heads both are, otherwise
            ring.
        scale: the factor on the scores; 1 / sqrt(head_dim) if None.
        check: whether the ranks first compare their shapes, dtypes and options. This costs a small message, for
            which the host waits; a training loop may skip it after the first step.

    Returns:
        [batch, heads, S_q / ranks, head_dim] of query's dtype.

    Raises:
        ValueError: an argument that is not supported, or not the same on every rank; raised on every rank.
        RankLost: a rank exited, or did not arrive within the process group's timeout (gloo; NCCL ends the process).
        RuntimeError: no process group.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("there is no process group: call torch.distributed.init_process_group first, see torchrun")
    fault = _fault(query, key, value, causal, method, group)
    if check:
        agree(_facts(query, key, value, causal, method, scale), fault, group)
    elif fault:
        raise ValueError(fault)
    ranks = dist.get_world_size(group)
    scale = query.size(-1) ** -0.5 if scale is None else scale
    if ranks == 1:
        return attention(query, key, value, is_causal=causal, scale=scale, enable_gqa=True)
    if method == "auto":
        dealt = query.size(1) % ranks == 0 and key.size(1) % ranks == 0
        method = "ulysses" if dealt and _gradient_needed(query, key, value) else "ring"
    if method == "ulysses":
        return ulysses_attention(query, key, value, group, causal, scale)
    return ring_attention(loaded("flash", query.device), query, key, value, group, causal, scale)


def _facts(query: Tensor, key: Tensor, value: Tensor, causal: bool, method: str, scale: float | None) -> dict[str, str]:
    """What must be the same on every rank."""
    tensors = {"query": query, "key": key, "value": value}
    facts = {f"the shape of {name}": str(list(getattr(x, "shape", "?"))) for name, x in tensors.items()}
    facts |= {f"the dtype of {name}": str(getattr(x, "dtype", "?")) for name, x in tensors.items()}
    needed = str(_gradient_needed(query, key, value))
    return facts | {"causal": str(causal), "method": str(method), "scale": str(scale), "a gradient": needed}


def _gradient_needed(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in tensors)


def _fault(query, key, value, causal, method, group: dist.ProcessGroup | None) -> str | None:
    """What is wrong with this rank's arguments."""
    ranks, tensors = dist.get_world_size(group), {"query": query, "key": key, "value": value}
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            return f"{name} is {x!r}; it must be a tensor {SHAPE}"
        if x.dim() != 4:
            return f"{name} has {x.dim()} dimensions, shape {list(x.shape)}; it must be {SHAPE}"
        if x.dtype not in DTYPES or x.dtype != query.dtype:
            return f"{name} has dtype {x.dtype}; all must be float32, float16 or bfloat16, and the same"
        if x.device != query.device:
            return f"{name} is on the device {str(x.device)!r}, query on {str(query.device)!r}; they must be on one"
        if not x.numel():
            return f"{name} has shape {list(x.shape)}; no size may be 0"
    backend = dist.get_backend(group)
    if query.device.type != DEVICE_OF.get(backend, query.device.type):
        served = DEVICE_OF[backend]
        return f"query is on {query.device.type!r}, and the process group's backend {backend!r} serves {served!r}"
    if method not in METHODS:
        return f"method is {method!r}; it must be 'ring', 'ulysses' or 'auto'"
    if key.shape != value.shape:
        return f"key has shape {list(key.shape)}, value {list(value.shape)}; they must be equal"
    if query.size(0) != key.size(0) or query.size(3) != key.size(3):
        return f"query has shape {list(query.shape)}, key {list(key.shape)}; batch and head_dim must be equal"
    if query.size(1) % key.size(1):
        return f"query has {query.size(1)} heads, key {key.size(1)}; query's must be a multiple of key's"
    if method == "ulysses" and query.size(1) % ranks:
        return f"query has {query.size(1)} heads; for method 'ulysses' it must be a multiple of the {ranks} ranks"
    if causal and query.size(2) != key.size(2):
        return f"query has {query.size(2)} tokens on this rank, key {key.size(2)}; with causal they must be equal"
    for name in ("query", "key"):
        if ranks > 1 and tensors[name].size(2) % 2:
            return f"{name} has {tensors[name].size(2)} tokens on this rank; it must be an even number: see shard"
    return None

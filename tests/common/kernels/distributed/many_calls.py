"""Run by torchrun, one process per GPU: many ring calls compared with one GPU; exits with 0 if all are right.

Shapes, masks and methods change from call to call, and each rank overwrites its inputs as soon as a call returns:
data offered to other ranks must have been sent by then, and nothing may be overwritten while it is still being read.
"""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

import torch
import torch.distributed as dist

from common.kernels.attention import attention
from common.kernels.distributed import copies
from common.kernels.distributed.attention import sequence_parallel_attention
from common.kernels.distributed.shards import shard
from common.kernels.loaded import loaded

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", timeout=datetime.timedelta(minutes=2), device_id=device)
if dist.get_rank() == 0:
    loaded("flash", "cuda")
dist.barrier()
generator = torch.Generator(device).manual_seed(0)  # the same on all ranks
wrong = 0
for number in range(60):
    tokens, heads = (256, 4096, 1024, 8192)[number % 4], (4, 2, 8)[number % 3]
    shape = 1 + number % 2, heads, tokens, 64
    whole = [torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16) for _ in range(3)]
    mine, causal, gradient = [shard(x).clone() for x in whole], number % 5 != 0, number % 7 == 0
    if gradient:
        mine, whole = [x.requires_grad_() for x in mine], [x.requires_grad_() for x in whole]
    out = sequence_parallel_attention(*mine, causal=causal, method="ring", check=number == 0)
    expected = attention(*whole, is_causal=causal)
    pairs = [(out, shard(expected))]
    if gradient:
        pairs += zip(
            torch.autograd.grad(out.sum(), mine), map(shard, torch.autograd.grad(expected.sum(), whole)), strict=True
        )
    with torch.no_grad():
        for x in mine:
            x.fill_(torch.nan)
    for got, right in pairs:
        if not torch.allclose(got, right, rtol=2e-2, atol=2e-2):
            wrong += 1
            print(f"rank {dist.get_rank()}, call {number}: {(got - right).abs().max()}", flush=True)
if not any(copies._made.values()):
    print(f"rank {dist.get_rank()}: the copy engines were not used", flush=True)
    wrong += 1
dist.destroy_process_group()
sys.exit(wrong > 0)

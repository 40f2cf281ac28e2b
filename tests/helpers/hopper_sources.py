"""The Hopper kernels of flash and sparse, as sources of a build for sm_90a that holds nothing else."""

from __future__ import annotations

from pathlib import Path

import torch

from common.compiling.request import BuildRequest
from common.console.paths import ROOT


def _of(room: str, *kernels: str) -> list[Path]:
    """In addition only_hopper.cu, which stands for the room's other launchers."""
    places = [ROOT / "common/kernels" / room / name for name in kernels]
    return [*places, ROOT / "tests/common/kernels" / room / "only_hopper.cu"]


FLASH = _of(
    "flash",
    "flash_kernels.cu",
    "flash_attention_wgmma.cu",
    "flash_attention_wgmma_fp16.cu",
    "flash_attention_wgmma_bf16.cu",
    "flash_attention_wgmma_3xfp16.cu",
    "flash_backward_wgmma_fp16.cu",
    "flash_backward_wgmma_bf16.cu",
    "flash_sinks.cu",
    "flash_dropout_mask.cu",
)
# Without the kernels of float16, which take as long to compile as those of bfloat16 and are made of the same text
FLASH_BF16 = [one for one in FLASH if not one.name.endswith("fp16.cu") or "3xfp16" in one.name]
FLASH_BF16.append(ROOT / "tests/common/kernels/flash/only_bf16.cu")


def flash_build(dtype: torch.dtype) -> BuildRequest:
    """The simulator's build of FLASH for tensors of this dtype: with the kernels of float16 only for float16."""
    sources, label = (FLASH, "hopper") if dtype == torch.float16 else (FLASH_BF16, "hopper_bf16")
    return BuildRequest("flash", backend="simulator", arch="sm_90a", sources=sources, label=label)


SPARSE = _of("sparse", "sparse_attention_wgmma.cu", "compress_block_mask.cu")

"""The flash and sparse Hopper kernels, as sources of a build for sm_90a that contains nothing else."""

from __future__ import annotations

from pathlib import Path

from common.compiling.request import BuildRequest
from common.console.paths import ROOT


def _of(room: str, *kernels: str) -> list[Path]:
    """These kernels plus only_hopper.cu, which replaces the folder's other launchers."""
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
    "flash_backward_wide_fp16.cu",
    "flash_backward_wide_bf16.cu",
    "flash_sinks.cu",
    "flash_dropout_mask.cu",
)
# The dense bfloat16 and float32 kernels: the others come from the same source and take most of the build time
FLASH_DENSE = [one for one in FLASH if not one.stem.endswith(("wgmma_fp16", "wgmma_bf16", "wide_fp16", "wide_bf16"))]
FLASH_DENSE.append(ROOT / "tests/common/kernels/flash/only_dense.cu")


def flash_build(dense: bool = False, checked: bool = False) -> BuildRequest:
    """The simulator's build of FLASH, or of FLASH_DENSE: for calls without options and not in float16."""
    sources, label = (FLASH_DENSE, "hopper_dense") if dense else (FLASH, "hopper")
    return BuildRequest("flash", backend="simulator", arch="sm_90a", sources=sources, label=label, checked=checked)


SPARSE = _of("sparse", "sparse_attention_wgmma.cu", "compress_block_mask.cu")

"""The Hopper kernels of flash, flash_options and sparse, as sources of a build for sm_90a that holds nothing else."""

from __future__ import annotations

from pathlib import Path

from common.console.paths import ROOT


def _of(room: str, *kernels: str) -> list[Path]:
    """Beside them only_hopper.cu, which stands for the room's other launchers."""
    places = [ROOT / "common/kernels" / room / name for name in kernels]
    return [*places, ROOT / "tests/common/kernels" / room / "only_hopper.cu"]


DENSE = _of("flash", "flash_attention_wgmma.cu", "flash_attention_wgmma_3xfp16.cu", "flash_backward_wgmma.cu")
OPTIONS = _of(
    "flash_options",
    "options_wgmma_fp16.cu",
    "options_wgmma_bf16.cu",
    "options_dropout.cu",
    "options_backward_wgmma_fp16.cu",
    "options_backward_wgmma_bf16.cu",
    "options_sinks.cu",
)
SPARSE = _of("sparse", "sparse_attention_wgmma.cu", "compress_block_mask.cu")

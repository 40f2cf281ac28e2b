"""The operators that the engine runs on: those of tasks 4, 6 and 7, of one variant and backend."""

from dataclasses import dataclass

import torch

from common.build import Operators
from task7.kernels import load_variant

TAUGHT_DTYPES = ("float32",)
TUNED_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class EngineKernels:
    """What `load_engine_kernels` returns.

    flash: task 4's operators; the engine's prefill calls flash_attention.
    decode: task 6's; it calls update_cache and decode_attention.
    gpt2: task 7's; it calls layernorm and bias_gelu, and of the tuned ones the step's (decode_step.py).
    variant: "student", "solution" or "tuned".
    """

    flash: Operators
    decode: Operators
    gpt2: Operators
    variant: str

    @property
    def backend(self) -> str:
        """Which backend runs them: "cuda" or "simulator"."""
        return self.flash.backend

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.flash.device

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that they compute with: the taught kernels are float32."""
        return TUNED_DTYPES if self.variant == "tuned" else TAUGHT_DTYPES


def load_engine_kernels(variant: str = "solution", backend: str = "auto", arch: str | None = None) -> EngineKernels:
    """Compiles (if needed) and loads the operators of tasks 4, 6 and 7.

    Arguments and errors: see task7.kernels.load_variant.
    """
    return EngineKernels(*load_variant(("task4", "task6", "task7"), variant, backend, arch), variant)

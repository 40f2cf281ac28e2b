"""EngineKernels: the operators that the engine uses, of one variant and backend."""

from dataclasses import dataclass

import torch

from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.request import BuildRequest

TAUGHT_DTYPES = ("float32",)
TUNED_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class EngineKernels:
    """Operators of one variant, taught or tuned.

    flash: the prefill calls flash_attention: task 4's operators, or those of common/kernels/flash.
    decode: the engine calls update_cache and decode_attention: task 6's, or common/kernels/decode.
    gpt2: the engine calls layernorm and bias_gelu, and the step's for the tuned ones (decode_step.py): task 7's, or
        those here.
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
        """The device of the tensors."""
        return self.flash.device

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that they support: float32 only for the taught kernels."""
        return TUNED_DTYPES if self.variant == "tuned" else TAUGHT_DTYPES


def tuned_kernels(backend: str = "auto", arch: str | None = None) -> EngineKernels:
    """The operators of common/kernels, compiled if needed. Arguments: BuildRequest; errors: common.compiling.load."""
    rooms = (load(BuildRequest(room, backend=backend, arch=arch)) for room in ("flash", "decode", "gpt2"))
    return EngineKernels(*rooms, "tuned")

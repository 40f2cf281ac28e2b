"""Public entry points to the kernels: a drop-in for PyTorch's attention, and an attention for transformers' models.

    from task7.front_door import CUDAAttention, scaled_dot_product_attention       replace PyTorch's (sdpa.py)
    from task7.front_door import explain                        which kernel a call gets, and why (explain.py)
    from task7.front_door import KernelCache, register          for transformers (kernel_attention.py, cache.py)
    from task7.front_door import export_onnx                    exports a model that uses it to ONNX (onnx_export.py)

Features outside PyTorch's signature, packed sequences and caches, are in common/kernels/attention.py. The transformers
modules are imported lazily, since that takes seconds.
"""

from task7.front_door.explain import explain
from task7.front_door.onnx_export import export_onnx
from task7.front_door.sdpa import CUDAAttention, scaled_dot_product_attention

__all__ = [
    "CUDAAttention",
    "KernelCache",
    "explain",
    "export_onnx",
    "register",
    "scaled_dot_product_attention",
]


def __getattr__(name: str):
    if name == "register":
        from task7.front_door.kernel_attention import register

        return register
    if name == "KernelCache":
        from task7.front_door.cache import KernelCache

        return KernelCache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

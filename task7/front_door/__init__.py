"""The doors to the kernels: in place of PyTorch's attention, and in transformers' models.

    from task7.front_door import CUDAAttention, scaled_dot_product_attention       in place of PyTorch's (sdpa.py)
    from task7.front_door import explain                        which kernel a call gets, and why (explain.py)
    from task7.front_door import KernelCache, register          into transformers (kernel_attention.py, cache.py)
    from task7.front_door import export_onnx                    a model with it as an ONNX file (onnx_export.py)

What PyTorch's function has no name for, packed sequences and caches, is in common/kernels/attention.py. What belongs to
transformers is imported only when needed: that takes seconds.
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

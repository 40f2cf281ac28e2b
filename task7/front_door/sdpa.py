"""A drop-in for torch.nn.functional.scaled_dot_product_attention that runs the kernels of tasks 1, 2 and 4.

    scaled_dot_product_attention(query, key, value, is_causal=True, mode="tiled")
    CUDAAttention(is_causal=True, mode="flash", variant="tuned")(query, key, value)      the same as a module

    mode      kernels             variants                     masks       computes in            head_dim
    naive     task 1              student, solution            any         float32                any
    tiled     task 2              student, solution            any         float32                any
    flash     task 4              student, solution            is_causal   float32                up to 128
    flash     common/kernels      tuned: has gradients         any         the inputs' dtype      up to 256

Without a variant, the solution's kernels run. For what those of flash don't support (masks, gradients, softcap, sinks,
dropout, windows, head_dim over 128), the tuned ones do: attention of common/kernels/attention.py, which has more
options. The tensors' device selects the backend: the simulator on the CPU, kernels compiled by nvcc on a GPU. The
operators are built and loaded on first use, and cached.
"""

from __future__ import annotations

from torch import Tensor, nn

from common.kernels.attention_call import Options, one_node, refuse_script
from common.kernels.attention_kernels import attend
from task7.front_door.taught import check_choice, chosen


@one_node
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    mode: str = "flash",
    variant: str | None = None,
    **options,
) -> Tensor:
    """softmax(query @ key^T * scale + attn_mask) @ value by a task's kernels, with the signature of PyTorch's function.

    Takes what torch.nn.functional.scaled_dot_product_attention takes and returns the same results, or raises an error
    that says what to do instead. Under torch.autocast inputs are cast as in PyTorch. Under torch.compile and
    torch.export there is no graph break once the kernels are loaded: call it once before. torch.func.grad and vmap work
    with the tuned kernels, vmap in one launch; with the others vmap loops over the samples, and PyTorch warns of that.
    NaN and infinity at hidden keys never reach the rows that do not see them in results and gradients of the tuned
    kernels. With the other variants they do, as 0 times NaN.

    Kernels that are not tuned need copies of: non-contiguous inputs, broadcast ones included; 16-bit inputs in the
    modes tiled and flash (converted to float32); keys and values repeated for enable_gqa; rows that are zero-padded
    because value_head_dim differs from head_dim. For what the tuned ones copy, see attention.

    Args:
        query: [..., S_q, head_dim], float32, float16 or bfloat16, on the CPU or a GPU, with any strides.
        key: [..., S_k, head_dim], of query's dtype and on its device, like value.
        value: [..., S_k, value_head_dim].
        attn_mask: bool (True: attend), or float32 or query's dtype (added to the scaled scores), broadcasts to
            [..., S_q, S_k]; or PyTorch's causal_lower_right(S_q, S_k) or causal_upper_left. Not with is_causal.
        dropout_p: applies in inference, too, as in PyTorch, but drops other weights. Only the tuned kernels of mode
            "flash".
        is_causal: query i sees keys j <= i, counted from the first key even if S_q != S_k.
        scale, enable_gqa: as in PyTorch's function.
        mode: "naive", "tiled" or "flash".
        variant: "student" (the task's .cu file), "solution" or "tuned" (flash only). None: "solution", or in mode
            "flash" "tuned" for what only that supports.
        options: softcap, sinks, window_size, lower_right, deterministic and others; see attention of
            common/kernels/attention.py. Only the tuned kernels of mode "flash", except lower_right, which all support.

    Returns:
        [..., S_q, value_head_dim] of query's dtype; zeros for a query that sees no key. With mode="flash", query, key,
        value and sinks get gradients, unless variant is "student" or "solution".

    Raises:
        ValueError: an unsupported argument; the message names it, its value and what is allowed.
        TypeError: query, key, value, attn_mask or sinks is not a tensor.
        RuntimeError: attn_mask together with is_causal, as in PyTorch.
        NotImplementedError: a student's kernel with unfilled gaps; torch.func where it is not supported.
        common.compiling.result.BuildError, common.compiling.toolchain.ToolchainError: the kernels cannot be built.
    """
    options = Options(
        attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa, **options
    )
    check_mask(options)
    kernels = chosen(mode, variant, query, key, value, options)
    if kernels is None:
        return attend(query, key, value, options)
    return kernels.attend(variant or "solution", query, key, value, options)


def check_mask(options: Options) -> None:
    """Raises RuntimeError for a mask together with is_causal, as in PyTorch."""
    if options.attn_mask is not None and options.is_causal:
        raise RuntimeError(
            "attn_mask is given and is_causal is True; only one of them may be: put the causal mask into attn_mask, "
            "for a bool one attn_mask & torch.ones(S_q, S_k, dtype=torch.bool).tril()"
        )


class CUDAAttention(nn.Module):
    """scaled_dot_product_attention as a module, without parameters: CUDAAttention(is_causal=True, mode="tiled").

    Args:
        mode, variant, options: see scaled_dot_product_attention.
        dropout_p: likewise, in training mode; after eval() there is no dropout.

    Raises:
        ValueError: no such mode or variant.
    """

    def __init__(
        self,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        *,
        mode: str = "flash",
        variant: str | None = None,
        dropout_p: float = 0.0,
        **options,
    ) -> None:
        super().__init__()
        check_choice(mode, variant)
        self.options = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa, "mode": mode}
        self.options |= {"variant": variant, **options}
        self.dropout_p = dropout_p

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Shapes, result and errors: see scaled_dot_product_attention."""
        dropout_p = self.dropout_p if self.training else 0.0
        return scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, sinks=sinks, **self.options)

    def __prepare_scriptable__(self) -> None:
        refuse_script("CUDAAttention")

    def extra_repr(self) -> str:
        options = self.options | {"dropout_p": self.dropout_p}
        return ", ".join(f"{name}={option!r}" for name, option in options.items())

"""A model that uses the front door -> ONNX, where its attention is the standard operator Attention.

    from task7.front_door import export_onnx
    program = export_onnx(model, (query, key, value))     torch.onnx.export(dynamo=True), opset 23
    program.save("model.onnx")

No kernel of this project is in the file: whoever runs it (onnxruntime, say) brings an attention of its own. Where a
query sees no key, the operator's result may be NaN in place of zeros.

Needs the packages of the extra: pip install -e '.[export]' -c constraints.txt

Source: https://onnx.ai/onnx/operators/onnx__Attention.html
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from common.kernels.flash_options import flash_options
from task7.front_door import sdpa

OPSET = 23  # the first with Attention


def export_onnx(model: nn.Module, args: tuple[Tensor, ...], **options) -> torch.onnx.ONNXProgram:
    """torch.onnx.export of a module whose attention is scaled_dot_product_attention or CUDAAttention, in inference.

    Args:
        model: in eval mode as a rule. It is run once before, so that the kernels are loaded.
        args: its inputs.
        options: further ones of torch.onnx.export: dynamic_shapes, input_names, ...

    Returns:
        What torch.onnx.export returns.

    Raises:
        ImportError: onnx or onnxscript is missing.
        ValueError: dynamo=False; a strided call (key_step), which the operator has not; softcap, sinks, dropout,
            windows, packed sequences and head_dim over 128, which are not translated.
        What the model raises, and torch.onnx.OnnxExporterError.
    """
    if not options.get("dynamo", True):
        raise ValueError("dynamo is False; it must be True: the older exporter does not know the operator Attention")
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"export_onnx needs the package {error.name}: pip install -e '.[export]' -c constraints.txt"
        ) from None
    with torch.no_grad():
        model(*args)
        table = translations() | options.pop("custom_translation_table", {})
        given = {"opset_version": OPSET, "verbose": False} | options | {"dynamo": True}
        return torch.onnx.export(model, args, custom_translation_table=table, **given)


def translations() -> dict[Callable, Callable]:
    """For torch.onnx.export(custom_translation_table=...): operators of the front door, as far as they are loaded."""
    table: dict[Callable, Callable] = {}
    for (mode, variant, _), ops in sdpa.loaded_operators().items():
        name = sdpa.kernels_of(mode, variant).operator
        operator = getattr(getattr(torch.ops, ops.library_of(name).name), name).default
        table[operator] = _tuned if variant == "tuned" else _taught_masked if mode != "flash" else _taught
    for operator in flash_options.loaded_operators():
        table[operator] = _options
    return table


def _attention(query, key, value, causal: bool, scale: float | None, mask=None):
    from onnxscript import opset23

    out, *_ = opset23.Attention(query, key, value, mask, is_causal=int(causal), scale=scale)
    return out


def _taught_masked(query, key, value, causal, scale=None, mask=None):
    return _attention(query, key, value, causal, scale, mask)


def _taught(query, key, value, causal, scale=None, lower_right=False):
    _refuse(lower_right, "lower_right")
    return _attention(query, key, value, causal, scale)


def _tuned(
    query,
    key,
    value,
    causal,
    scale=None,
    lower_right=False,
    mask=None,
    tensor_cores=True,
    key_step=1,
    key_offset=0,
    deterministic=False,
):
    _refuse(lower_right, "lower_right")
    _refuse(causal and (key_step, key_offset) != (1, 0), "key_step or key_offset")
    return _attention(query, key, value, causal, scale, mask)


def _options(*_, **__):
    raise ValueError(
        "the model calls an attention with softcap, sinks, dropout, a window, packed sequences or head_dim over 128, "
        "which this export does not translate"
    )


def _refuse(condition: bool, what: str) -> None:
    if condition:
        raise ValueError(f"the model calls an attention with {what}, which the operator Attention of ONNX has not")

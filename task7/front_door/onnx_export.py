"""Exports a model that uses the front door to ONNX, with its attention as the standard operator Attention.

    from task7.front_door import export_onnx
    program = export_onnx(model, (query, key, value))     torch.onnx.export(dynamo=True), opset 23
    program.save("model.onnx")

The file contains none of this project's kernels: the runtime (onnxruntime, for example) uses its own attention. Where a
query sees no key, that may return NaN instead of zeros.

Requires the extra: pip install -e '.[export]' -c constraints.txt

Source: https://onnx.ai/onnx/operators/onnx__Attention.html
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from common.kernels.attention_gradients import loaded_operators
from task7.front_door import taught

OPSET = 23  # the first opset with Attention


NO_LSE = math.nan  # stands in for the logsumexp; removed from the graph if no node reads it


class Refused(ValueError):
    """A call that the operator Attention cannot express."""


def export_onnx(model: nn.Module, args: tuple[Tensor, ...], **options) -> torch.onnx.ONNXProgram:
    """torch.onnx.export for inference of a module whose attention is scaled_dot_product_attention, CUDAAttention, or
    attention of common/kernels/attention.py. Windows and lower_right become a mask; softcap maps to the operator's.

    Args:
        model: usually in eval mode. It runs once first, to load the kernels.
        args: its inputs.
        options: passed to torch.onnx.export: dynamic_shapes, input_names, ...

    Returns:
        What torch.onnx.export returns.

    Raises:
        ImportError: onnx or onnxscript is missing.
        ValueError: dynamo=False; a call that the operator cannot express: causal strides, sinks, dropout, packed
            sequences, return_lse.
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
        try:
            program = torch.onnx.export(model, args, custom_translation_table=table, **given)
        except torch.onnx.OnnxExporterError as error:
            reason: BaseException | None = error
            while reason is not None and not isinstance(reason, Refused):
                reason = reason.__cause__ or reason.__context__
            if reason is None:
                raise
            raise reason from None
    constants = (x.const_value for x in program.model.graph.initializers.values())
    numbers = (x.numpy() for x in constants if x is not None and x.size == 1 and x.dtype.is_floating_point())
    _refuse(any(math.isnan(x.item()) for x in numbers), "return_lse")
    return program


def translations() -> dict[Callable, Callable]:
    """The custom_translation_table for torch.onnx.export: the front door's operators that are loaded so far."""
    table: dict[Callable, Callable] = {}
    for kernels in taught.MODES.values():
        for (task, _, _), ops in taught.loaded_operators().items():
            if task == kernels.task:
                namespace = getattr(torch.ops, ops.library_of(kernels.operator).name)
                table[getattr(namespace, kernels.operator).default] = _taught_masked if kernels.masks else _flash
    for operators in loaded_operators("flash"):
        table[operators.flash_attention.default] = _flash
        table[operators.flash_attention_forward.default] = _forward
        table[operators.packed_attention.default] = functools.partial(_refuse_all, "packed sequences")
    for operators in loaded_operators("sparse"):
        table[operators.strided_attention.default] = functools.partial(_refuse_all, "a stride (key_stride)")
        table[operators.sliding_window_attention.default] = _window
    return table


def _taught_masked(query, key, value, causal, scale=None, mask=None):
    return _attention(query, key, value, causal, scale, mask=mask)


def _flash(
    query, key, value, causal, scale=None, lower_right=False, mask=None, tensor_cores=True, key_step=1, key_offset=0,
    deterministic=False,
):  # fmt: skip
    _refuse(causal and (key_step, key_offset) != (1, 0), "a stride (key_stride)")
    return _attention(query, key, value, causal, scale, lower_right, mask)


def _forward(
    query, key, value, causal, scale=None, lower_right=False, mask=None, tensor_cores=True, key_step=1, key_offset=0,
    deterministic=False, softcap=0.0, sinks=None, dropout_p=0.0, seed=None, window_left=-1, window_right=-1,
):  # fmt: skip
    """The forward operator with options, or called without them for its second result, the logsumexp."""
    used = softcap > 0 or sinks is not None or dropout_p > 0 or window_left >= 0 or window_right >= 0
    _refuse(not used, "return_lse")
    _refuse(sinks is not None, "sinks")
    _refuse(dropout_p > 0, "dropout (dropout_p)")
    out = _attention(query, key, value, causal, scale, lower_right, mask, softcap, window_left, window_right)
    from onnxscript import opset23 as op

    return out, op.Constant(value_float=NO_LSE)


def _window(query, key, value, window, causal=True, scale=None):
    return _attention(query, key, value, causal, scale, left=window - 1, right=-1 if causal else window - 1)


def _refuse_all(what: str, *_, **__):
    _refuse(True, what)


def _attention(
    query, key, value, causal: bool, scale: float | None, lower_right=False, mask=None, softcap=0.0, left=-1, right=-1
):  # fmt: skip
    """The operator Attention. Its causal mask is aligned to the upper left; other masks are passed as a tensor."""
    from onnxscript import opset23 as op

    if lower_right or left >= 0 or right >= 0:
        seen = _seen(op, query, key, causal, lower_right, left, right)
        causal = False
        if mask is None:
            mask = seen
        elif mask.dtype == mask.dtype.BOOL:
            mask = op.And(seen, mask)
        else:
            mask = op.Where(seen, mask, op.CastLike(op.Constant(value_float=-math.inf), mask))
    out, *_ = op.Attention(query, key, value, mask, is_causal=int(causal), scale=scale, softcap=softcap)
    return out


def _seen(op, query, key, causal: bool, lower_right: bool, left: int, right: int):
    """bool [S_q, S_k]: which keys each query sees."""

    def number(x: int):
        return op.Constant(value_int=x)

    seq_q, seq_k = (op.Squeeze(op.Shape(x, start=2, end=3)) for x in (query, key))
    at = op.Range(number(0), seq_q, number(1))
    at = op.Unsqueeze(op.Add(at, op.Sub(seq_k, seq_q)) if lower_right else at, op.Constant(value_ints=[1]))
    keys, seen = op.Range(number(0), seq_k, number(1)), []
    if causal:
        seen.append(op.LessOrEqual(keys, at))
    if left >= 0:
        seen.append(op.GreaterOrEqual(keys, op.Sub(at, number(left))))
    if right >= 0:
        seen.append(op.LessOrEqual(keys, op.Add(at, number(right))))
    return functools.reduce(op.And, seen)


def _refuse(condition: bool, what: str) -> None:
    if condition:
        raise Refused(f"the model calls an attention with {what}, which the operator Attention of ONNX does not have")

"""A module that uses the front door, exported to ONNX: the standard operator in onnxruntime against the kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from common.kernels.attention import attention, attention_varlen
from task7.front_door import CUDAAttention, export_onnx, scaled_dot_product_attention

needs_packages = pytest.mark.skipif(
    any(__import__("importlib").util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="onnx, onnxscript and onnxruntime are not installed: pip install -e '.[export]' -c constraints.txt",
)
DOORS = [("naive", "solution"), ("tiled", "solution"), ("flash", "solution"), ("flash", "tuned")]


class Layer(nn.Module):
    """Self-attention with 4 query heads and 2 KV heads: projections around the front door."""

    def __init__(self, **options) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(32, 64)
        self.attention = CUDAAttention(enable_gqa=True, **options)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        heads = self.project(x).unflatten(-1, (8, 8)).transpose(1, 2)
        out = self.attention(heads[:, :4], heads[:, 4:6], heads[:, 6:], mask)
        return out.transpose(1, 2).flatten(2)


def run(program, *inputs: Tensor) -> Tensor:
    import onnxruntime

    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    given = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
    return torch.from_numpy(session.run(None, given)[0])


def operators_in(program) -> set[tuple[str, str]]:
    return {(node.domain, node.op_type) for node in program.model_proto.graph.node}


@needs_packages
@pytest.mark.parametrize(("mode", "variant"), DOORS)
def test_attention_is_the_standard_operator(mode, variant):
    layer = Layer(is_causal=True, scale=0.3, mode=mode, variant=variant).eval()
    program = export_onnx(layer, (torch.randn(2, 7, 32),), dynamic_shapes=({1: torch.export.Dim("length", max=64)},))
    assert ("", "Attention") in operators_in(program)
    assert {domain for domain, _ in operators_in(program)} == {""}
    with torch.no_grad():
        for length in (7, 12):
            x = torch.randn(2, length, 32)
            torch.testing.assert_close(run(program, x), layer(x), rtol=1e-5, atol=1e-5)


@needs_packages
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_mask_is_the_operators_mask(kind):
    layer = Layer().eval()
    x = torch.randn(2, 7, 32)
    mask = torch.rand(7, 7) < 0.7
    mask.fill_diagonal_(True)
    mask = mask if kind == "bool" else torch.randn(7, 7)
    program = export_onnx(layer, (x, mask))
    assert ("", "Attention") in operators_in(program)
    with torch.no_grad():
        torch.testing.assert_close(run(program, x, mask), layer(x, mask), rtol=1e-5, atol=1e-5)


class Call(nn.Module):
    """One call of a function, with options."""

    def __init__(self, function, **options) -> None:
        super().__init__()
        self.function, self.options = function, options

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs, **self.options)


CALLS = {
    "lower right, taught": (scaled_dot_product_attention, {"is_causal": True, "lower_right": True}),
    "lower right": (attention, {"is_causal": True, "lower_right": True}),
    "window": (attention, {"window_size": (1, 2)}),
    "window in 16 bits": (attention, {"window_size": (2, 2), "kernel": "sparse"}),
    "softcap": (attention, {"softcap": 2.0, "is_causal": True}),
    "all of them": (attention, {"softcap": 0.5, "window_size": (2, -1), "is_causal": True, "lower_right": True}),
    "head_dim 160": (attention, {}),
}


@needs_packages
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_what_the_operator_can_say(name, masked):
    """Against onnxruntime, with more keys than queries and a different number than at export."""
    function, options = CALLS[name]
    if masked and (options.get("kernel") == "sparse" or "taught" in name):
        pytest.skip("takes no mask")
    dtype, call = (
        torch.float16 if options.get("kernel") == "sparse" else torch.float32,
        Call(function, **options).eval(),
    )
    head_dim = 160 if name == "head_dim 160" else 8

    def inputs(keys: int) -> tuple[Tensor, ...]:
        sizes = [(1, 2, n, head_dim) for n in (3, keys, keys)] + [(3, keys)] * masked
        return tuple(torch.randn(size).to(dtype) for size in sizes)

    keys = torch.export.Dim("keys", max=64)
    shapes = ({}, {2: keys}, {2: keys}, *[{1: keys}] * masked)
    program = export_onnx(call, inputs(7), dynamic_shapes=(shapes,))
    assert ("", "Attention") in operators_in(program) and {domain for domain, _ in operators_in(program)} == {""}
    for given in (inputs(7), inputs(12)):
        atol = 1e-5 if dtype == torch.float32 else 4e-3
        torch.testing.assert_close(run(program, *given), call(*given), rtol=1e-5, atol=atol)


def packed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return attention_varlen(*(x[0].transpose(0, 1) for x in (query, key, value)), torch.tensor([0, 3]))


@needs_packages
@pytest.mark.parametrize(
    ("call", "what"),
    [
        (Call(attention, sinks=torch.zeros(2)), "sinks"),
        (Call(attention, dropout_p=0.2), r"dropout \(dropout_p\)"),
        (Call(attention, key_stride=2, is_causal=True), r"a stride \(key_stride\)"),
        (Call(attention, return_lse=True), "return_lse"),
        (Call(attention, return_lse=True, softcap=2.0), "return_lse"),
        (Call(packed), "packed sequences"),
    ],
)
def test_what_it_cannot_say_is_refused(call, what):
    with pytest.raises(ValueError, match=f"the model calls an attention with {what}, which the operator Attention"):
        export_onnx(call.eval(), tuple(torch.randn(1, 2, 3, 8) for _ in range(3)))


@needs_packages
def test_the_older_exporter_is_refused():
    with pytest.raises(ValueError, match="dynamo is False; it must be True"):
        export_onnx(Layer(), (torch.randn(1, 3, 32),), dynamo=False)


def test_a_missing_package_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"export_onnx needs the package onnx.*: pip install -e '\.\[export\]'"):
        export_onnx(Layer(), (torch.randn(1, 3, 32),))

"""A module with the front door as an ONNX file: the standard operator, run by onnxruntime, beside the kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from task7.front_door import CUDAAttention, export_onnx

needs_packages = pytest.mark.skipif(
    any(__import__("importlib").util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="onnx, onnxscript and onnxruntime are not installed: pip install -e '.[export]' -c constraints.txt",
)
DOORS = [("naive", "solution"), ("tiled", "solution"), ("flash", "solution"), ("flash", "tuned")]


class Layer(nn.Module):
    """Self-attention of 4 heads on 2: projections around the front door."""

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


@needs_packages
def test_options_are_refused():
    with pytest.raises(
        Exception, match="softcap, sinks, dropout, a window, packed sequences or head_dim over 128, which this export"
    ):
        export_onnx(Layer(variant="tuned", softcap=2.0), (torch.randn(1, 3, 32),))


@needs_packages
def test_the_older_exporter_is_refused():
    with pytest.raises(ValueError, match="dynamo is False; it must be True"):
        export_onnx(Layer(), (torch.randn(1, 3, 32),), dynamo=False)


def test_a_missing_package_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"export_onnx needs the package onnx.*: pip install -e '\.\[export\]'"):
        export_onnx(Layer(), (torch.randn(1, 3, 32),))

"""A student's Python in a process without tensors gives PyTorch's results, and refused calls are named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from common.compiling.operators import Operators
from common.console.paths import ROOT
from common.course.grading.handle_server import module_of
from common.measure.allocations import AllocationRecorder
from common.testing.calling import CallFailed
from common.testing.case import NOT_IMPLEMENTED

VARIANTS = ROOT / "tests" / "variants"
HEAD = "import torch\ndef f(x, y):\n    "


def module(folder: Path, text: str, task: str = "task3", with_kernels: bool = False):
    (folder / task).mkdir()
    if not (folder / "common").exists():
        (folder / "common").symlink_to(ROOT / "common")
    for name in ("__init__.py", "given"):
        (folder / task / name).symlink_to(ROOT / task / name)
    (folder / task / "attention.py").write_text(text, encoding="utf-8")
    return module_of(str(folder), task, "attention", with_kernels)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr("common.course.grading.handle_server._started", {})


def texts(task: str, part: str) -> list[str]:
    files = [ROOT / task / "solution" / "attention.py", *sorted((VARIANTS / f"{task}_{part}").glob("*.py"))]
    return [file.read_text(encoding="utf-8") for file in files]


@pytest.mark.parametrize("text", texts("task3", "algorithm"), ids=lambda text: text.splitlines()[0][:40])
@pytest.mark.parametrize("causal", [False, True])
def test_right_algorithms(tmp_path: Path, text: str, causal: bool) -> None:
    query, key, value = (torch.randn(2, 2, size, 8) for size in (37, 50, 50))
    side = module(tmp_path, text)
    with AllocationRecorder(line=side.calling_line, inputs=(query, key, value)) as made:
        out, lse = side.flash_attention(query, key, value, causal, B_r=16, B_c=8, return_lse=True)
    right = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    assert torch.allclose(out, right, atol=1e-5) and lse.shape == out.shape[:-1]
    assert "task3/attention.py:" in made.largest.file_line


@pytest.mark.parametrize("text", texts("task1", "layer"), ids=lambda text: text.splitlines()[0][:40])
def test_right_layers(tmp_path: Path, text: str) -> None:
    theirs = nn.MultiheadAttention(24, 3, batch_first=True).eval()
    x = torch.randn(2, 13, 24)
    with torch.no_grad():
        layer = module(tmp_path, text, "task1").MultiHeadAttention.from_multihead_attention(theirs, True)
        assert [tuple(one.shape) for one in layer.parameters()] == [(72, 24), (72,), (24, 24), (24,)]
        right, _ = theirs(x, x, x, attn_mask=torch.ones(13, 13, dtype=torch.bool).triu(1))
        assert torch.allclose(layer(x), right, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return torch.nn.functional.scaled_dot_product_attention(x, x, x)", "scaled_dot_product_attention can't be"),
        ("for _ in range(300): torch.unique(x)", "500 numbers"),
        ("return x.untyped_storage()", "Tensor.untyped_storage can't be used"),
        ("return torch.ops.aten.mm(x, y)", "no attribute 'aten'"),
        ("return x.as_strided((9999,), (1,))", "Tensor.as_strided can't be used"),
        ("return torch.load('/etc/passwd')", "torch.load can't be used"),
        ("return torch.tensor(torch.ones(30, 30).tolist())", "500 numbers"),
        ("while True: x[x > 0]", "500 numbers"),
        ("while True: torch.arange(x[0, 0])", "500 numbers"),
        ("return torch.tensor(list(torch.ones(501).bool().unbind()))", "500 numbers"),
        ("return torch.tensor_split(torch.zeros(9), torch.ones(300).cumsum(0).long())", "500 numbers"),
        ("return x @ torch.ones(3, 3)", "attention.py:3 in f"),
        ("return x.to(type(x.dtype)('complex64'))", "dtype complex64 can't be used"),
        (
            "from torch.nn.attention.flex_attention import flex_attention; return flex_attention(x, x, x)",
            "flex_attention can't be used",
        ),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import os; os._exit(0)", "has ended"),
        (
            "import common.course.grading.torch_handles as t, time; t.connection.send_bytes(b'['); time.sleep(9)",
            "request",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(CallFailed, match=words):
        module(tmp_path, HEAD + body).f(torch.ones(2, 2), torch.ones(2, 2))


def test_a_tensor_of_numbers_that_are_read_is_computed_from_them(tmp_path: Path) -> None:
    x = torch.randn(16, 16)
    side = module(tmp_path, HEAD + "return torch.tensor(list((x > 0).view(-1).unbind()))")
    with AllocationRecorder(line=side.calling_line, inputs=(x,), source=x) as made:
        out = side.f(x, x)
    assert torch.equal(out, (x > 0).view(-1)) and made.peak_from_source == 2 * 4 * x.numel() and not made.read


@pytest.mark.parametrize("name", ["torch.tensor", "torch.as_tensor", "torch.asarray", "x.new_tensor"])
def test_a_list_given_to_a_device_is_read(tmp_path: Path, name: str) -> None:
    """A copy of keys from a list is made of keys: combined with queries, they are met."""
    x, y = torch.randn(20, 20), torch.randn(20, 20)
    side = module(tmp_path, HEAD + f"return x @ {name}(list(y.view(-1).unbind()), device=y.device).view(20, 20)")
    with AllocationRecorder(line=side.calling_line, inputs=(x, y), source=x, partner=y) as made:
        out = side.f(x, y)
    assert torch.equal(out, x @ y) and made.met == y.numel()
    with pytest.raises(CallFailed, match="500 numbers"):
        side.f(x, torch.randn(30, 20))


@pytest.mark.parametrize(("count", "read"), [(40, False), (60, True)])
def test_sizes_that_reveal_many_bits_count_as_read(tmp_path: Path, count: int, read: bool) -> None:
    """Each split has two sizes of at most 20 bits."""
    body = f"for i in range({count}): torch.zeros(1).expand(10**6).tensor_split(x[i : i + 1])\n    return x"
    x = torch.full((100,), 567_890)
    side = module(tmp_path, HEAD + body)
    with AllocationRecorder(line=side.calling_line, inputs=(x,), source=x) as made:
        side.f(x, x)
    assert bool(made.read) is read


def test_what_only_shapes_decide_is_not_counted(tmp_path: Path) -> None:
    body = "for _ in range(300): y = (x.to('cpu').to(x.device)[:1].max(-1).values + y[0]).repeat(2, 1); y[y > 9] = 0\n"
    assert module(tmp_path, f"{HEAD}{body}    return y").f(torch.ones(2, 2), torch.ones(2, 2)).shape == (2, 2)


def test_a_gap_is_not_implemented(tmp_path: Path) -> None:
    with pytest.raises(CallFailed) as caught:
        module(tmp_path, HEAD + "raise NotImplementedError").f(1, 2)
    assert (caught.value.status, caught.value.file_line) == (NOT_IMPLEMENTED, "task3/attention.py:3")


def test_beside_kernels_python_may_not_compute(tmp_path: Path) -> None:
    body = "assert y.isfinite().all()\n    return getattr(torch, x)(y, y) if x else torch.cat([y[:, :1], 2 * y], 1)"
    made = module(tmp_path, HEAD + body, "task6", True)
    assert made.f("", torch.ones(2, 2)).tolist() == [[1, 2, 2], [1, 2, 2]]
    for name in ("matmul", "pow"):
        with pytest.raises(CallFailed, match=f"torch.{name} can't be used"):
            made.f(name, torch.ones(2, 2))


def test_beside_kernels_no_other_name_computes(tmp_path: Path) -> None:
    made = module(tmp_path, HEAD + "return eval(x, {'torch': torch, 'y': y})", "task6", True)
    for words, name in (("torch.special.softmax(y, -1)", "softmax"), ("y.aminmax()", "amin"), ("y.exp_()", "exp_")):
        with pytest.raises(CallFailed, match=rf"\.{name} can't be used"):
            made.f(words, torch.ones(2, 2))


def test_a_view_in_place_leaves_the_callers_tensor_as_it_is(tmp_path: Path) -> None:
    x = torch.ones(2, 3)
    assert module(tmp_path, HEAD + "return x.t_().unsqueeze_(0)").f(x, x).shape == (1, 3, 2) and x.shape == (2, 3)
    body = "from common.course.grading.torch_handles import ask\n    return ask('Tensor', 'unsqueeze_', x, 0)"
    (tmp_path / "raw").mkdir()
    with pytest.raises(CallFailed, match="unsqueeze_ can't be used"):
        module(tmp_path / "raw", HEAD + body, "task1").f(x, x)


def test_of_operators_only_operators_can_be_called(tmp_path: Path) -> None:
    class Kernels(Operators):
        def __init__(self) -> None:
            self.task, self.variant, self.libraries = "task6", "student", [SimpleNamespace(operators={"twice"})]

        def twice(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    made = module(
        tmp_path,
        HEAD + "from common.course.grading.torch_handles import ask\n    return ask('operators 0', y, torch.ones(1))",
        "task6",
        True,
    )
    assert made.f(Kernels(), "twice").item() == 2
    for name in ("__setattr__", "_process", "library_of"):
        with pytest.raises(CallFailed, match=f"no operator '{name}'"):
            made.f(Kernels(), name)


def test_operations_behave_as_torchs(tmp_path: Path) -> None:
    text = """import torch
from torch import nn
def f(x, y):
    assert x.shape == (2, 3) and x.ndim == x.dim() == 2 and len(x) == 2 and x.size(-1) == 3 and x.numel() == 6
    assert x.dtype == torch.float32 and x.dtype is not torch.float64 and str(x.device) == "cpu" and x.device == y.device
    assert isinstance(x, torch.Tensor) and (x == x).all() and x[0, 0].item() == float(x[0, 0])
    z = x.clone()
    z += 1; z[0] = 0; z[:, [0, 2]] *= 2; z[x > 1e9] = 5
    values, indices = z.max(dim=1)
    assert z.max(1).values.shape == indices.shape == (2,) and indices.dtype == torch.long
    rows = [row for row in z]
    assert 2 - z is not None and (2 ** torch.tensor([1.0, 2.0])).tolist() == (2.0, 4.0)
    assert torch.finfo(x.dtype).min < -1e38 and torch.arange(5)[..., None].shape == (5, 1)
    return torch.stack(rows) @ y + nn.Softmax(dim=-1)(x)
"""
    x, y = torch.randn(2, 3), torch.randn(3, 3)
    z = x + 1
    z[0] = 0
    z[:, [0, 2]] *= 2
    assert torch.allclose(module(tmp_path, text).f(x, y), z @ y + x.softmax(-1))


def test_only_tensors_have_numbers_to_read(tmp_path: Path) -> None:
    text = """import json
import torch
from common.course.grading.torch_handles import connection
def f(x):
    given = {"given": [{"object": [7, []]}], "named": {}}  # would be asked how many numbers it has
    for answer in ({"call": ["Tensor", "item"], **given, "released": [], "line": 1}, {"returned": {"object": [8, []]}},
                   {"returned": -10**9}):
        connection.send_bytes(json.dumps(answer).encode())
        if "raised" in json.loads(connection.recv_bytes()):
            break
    return torch.tensor(x.tolist())
"""
    with pytest.raises(CallFailed, match="500 numbers"):
        module(tmp_path, text).f(torch.ones(30, 30))


def test_settings_that_change_no_number_do_no_harm(tmp_path: Path) -> None:
    text = (
        "import torch\ntorch.manual_seed(0)\ntorch.set_printoptions(precision=3)\ntorch.set_grad_enabled(False)\n"
        "device = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
        "import torch.linalg, torch.testing, torch.optim, torch.utils.data, torch.utils.cpp_extension, torch.cuda.amp\n"
        "from torch.autograd import Variable\nfrom torch.nn.parameter import Parameter\nfrom torch.nn import init\n"
        "from torch.nn.attention import sdpa_kernel, SDPBackend\nimport torch.distributed as dist\n"
        "class Step(torch.autograd.Function): pass\n"
        "weight = init.xavier_uniform_(Variable(torch.rand(2, 3, generator=torch.Generator().manual_seed(1))))\n"
        "torch.cuda.synchronize()\nassert weight.shape == torch.randn(2, 3).shape\n"
        "def f(x):\n    return (x + int(torch.__version__.split('.')[0])).to(device)\n"
    )
    x = torch.ones(2)
    assert torch.equal(module(tmp_path, text).f(x), x + int(torch.__version__.split(".")[0]))


def test_what_is_no_tensor_is_called_an_object(tmp_path: Path) -> None:
    with pytest.raises(CallFailed, match="not object"):
        module(tmp_path, HEAD + "return torch.exp(object())").f(torch.ones(1), torch.ones(1))


def test_what_is_not_in_the_tree_is_imported_as_a_stub(tmp_path: Path) -> None:
    text = """import torch
import common.diagnosis.mistakes.formulas as formulas
from common.reference.oracle import softmax
from common.reference.scale import scale_or_default
def f(x, name):
    return scale_or_default(0.5, 1) if not name else softmax(x) if name == "softmax" else getattr(formulas, name)(x)
"""
    (tmp_path / "common").mkdir()
    for name in ("console", "course", "testing", "__init__.py"):
        (tmp_path / "common" / name).symlink_to(ROOT / "common" / name)
    (tmp_path / "common" / "reference").mkdir()
    for name in ("scale.py", "__init__.py"):
        (tmp_path / "common" / "reference" / name).symlink_to(ROOT / "common" / "reference" / name)
    made = module(tmp_path, text)
    assert made.f(torch.ones(2), "") == 0.5
    for name in ("softmax", "divided"):
        with pytest.raises(CallFailed, match=f"common.*{name} can't be used in graded code"):
            made.f(torch.ones(2), name)


def test_an_object_of_the_other_process_is_asked_for_nothing(tmp_path: Path) -> None:
    text = """import json
import torch
from common.course.grading.torch_handles import connection
def f(x):
    given = [{"object": [7, [{"tensor": x._number}]]}]
    request = {"call": ["Tensor", "T"], "given": given, "named": {}, "released": [], "line": 1}
    connection.send_bytes(json.dumps(request).encode())
    return json.loads(connection.recv_bytes())["words"]
"""
    assert "object" in module(tmp_path, text).f(torch.ones(3))


def test_other_words_for_operations(tmp_path: Path) -> None:
    text = """import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
def f(x):
    assert x[:, torch.newaxis].shape == (4, 1, 4)
    assert [torch.ones(2, dtype=one).dtype for one in (bool, int, float)] == [torch.bool, torch.long, torch.float64]
    m = torch.from_numpy(np.triu(np.ones((4, 4)), k=1).astype("uint8")) == 1
    assert m.tolist()[0] == (False, True, True, True)
    assert torch.tensor(np.ones((4, 4))).shape == torch.as_tensor(np.arange(16).reshape(4, 4)).shape
    assert torch.tensor(np.ones((0, 3))).shape == (0, 3)
    assert x[:, np.arange(2)].shape == (4, 2) and torch.tensor(range(4)).shape == (4,)
    assert x.masked_fill(np.bool_(True), 0).abs().max().item() == 0
    assert (x * np.ones(4)).shape == x.shape
    assert torch.concatenate([x, x], dim=1).shape == (4, 8) and torch.concatenate((x, x)).shape == (8, 4)
    assert torch.allclose(x, x + 1e-9, atol=1e-5) and torch.isclose(x, x).all()
    a, b = torch.meshgrid(torch.arange(3), torch.arange(4), indexing="ij")
    assert torch.less(a, b).shape == (3, 4) and a.greater(b).shape == b.less_equal(a).shape
    assert torch.greater_equal(a, b).shape == torch.not_equal(a, b).shape
    assert torch.numel(x) == x.numel() == 16 and x.ravel().shape == torch.ravel(x).shape == (16,)
    assert F.dropout(x, 0.0) is x and nn.Dropout(0.1)(x) is x and nn.Identity()(x) is x
    assert torch.diag(x).shape == (4,) and torch.bitwise_and(a > 1, b > 1).shape == torch.bitwise_not(a > b).shape
    assert x.nbytes == 64 and x.itemsize == 4
    low = torch.tril(torch.ones(4, 4)).byte()
    assert x.masked_fill(low == 0, 0).sum().item() == 10 and low.nonzero().shape == (10, 2)
    rows, cols = torch.nonzero(low == 0, as_tuple=True)
    assert x.index_put((rows, cols), torch.zeros(6)).norm().square().round().item() == 10
    assert x.masked_select(low == 1).numel() == 10
    assert x.adjoint().shape == x.clone(memory_format=torch.contiguous_format).shape == (4, 4) and x.ndimension() == 2
    assert isinstance(x, torch.FloatTensor) and not isinstance(x, torch.LongTensor) and x.requires_grad_(False) is x
    assert torch.finfo(x.dtype).smallest_normal == torch.finfo(x.dtype).tiny
    assert torch.asarray([1]).short().shape == (1,)
    return f"{x.mean():.3f} {x[0, 0]}"
"""
    assert module(tmp_path, text).f(torch.ones(4, 4)) == "1.000 1.0"


def test_tensors_layers_and_in_place_forms_as_torchs(tmp_path: Path) -> None:
    text = """import torch
from torch import nn
class Layer(nn.Module):
    def __init__(self):
        self.all = nn.ModuleList([nn.Linear(4, 4), nn.Identity()])
        self.all.append(nn.Sequential(nn.Linear(4, 2), nn.Softmax(-1)))
@torch.compile(dynamic=True)
@torch.jit.script
@torch.autocast("cpu", dtype=torch.bfloat16)
def f(x):
    assert torch.sqrt(torch.Tensor([4])).item() == torch.FloatTensor([x[0, 0], 3]).sum().sqrt_()
    made = [torch.Tensor(2, 3), torch.HalfTensor(x.shape), torch.LongTensor(), torch.BoolTensor([[True]])]
    assert [one.shape for one in made] == [(2, 3), (4, 4), (0,), (1, 1)] and made[2].dtype.itemsize == 8
    assert [one.dtype.itemsize for one in made] == [4, 2, 8, 1] and torch.bfloat16.itemsize == 2
    y = z = x[:2].clone()
    assert y.add_(1).unsqueeze_(0).transpose_(-1, -2) is y and z.shape == (1, 4, 2) and x[:2].shape == (2, 4)
    z[0, 3] = 7
    assert y.squeeze_(0).t_()[1, 3].item() == 7 and torch.Tensor.swapaxes_(y, 0, 1).shape == (4, 2)
    with torch.autocast("cpu", enabled=False), torch.amp.autocast("cpu"):
        a, b = torch.broadcast_tensors(x, torch.ones(1, 4))
    assert torch.equal(a, b) and not torch.equal(a, b[0]) and not a.equal(b + 1)
    assert torch.special.softmax(x, -1).equal(x.softmax(-1)) and torch.special.logsumexp(x, -1).shape == (4,)
    assert [one.shape[0] for one in torch.split_with_sizes(x, [1, 3])] == [1, 3]
    assert torch.floor_divide(7 * x, 2).equal(3 * x) and (7 * x).remainder_(4).equal(3 * x)
    low, high = torch.aminmax(torch.arange(6).view(2, 3), dim=1)
    assert low.tolist() == (0, 3) and high.tolist() == (2, 5) and x.aminmax().max.item() == 1
    assert torch.get_default_dtype() is torch.float32 and not torch.is_grad_enabled()
    layer = Layer()
    assert [tuple(one.shape) for one in layer.parameters()] == [(4, 4), (4,), (2, 4), (2,)]
    for part in layer.all:
        x = part(x)
    return x, next(layer.parameters()).device.type, len(layer.all)
"""
    out, device, count = module(tmp_path, text).f(torch.ones(4, 4))
    assert out.tolist() == [[0.5, 0.5]] * 4 and (device, count) == ("cpu", 3)


def test_what_is_left_from_debugging(tmp_path: Path) -> None:
    text = """import torch
from torch import nn
class Layer(nn.Module):
    def __init__(self):
        self.norm = nn.LayerNorm(4)
        self.parts = nn.ModuleDict({"a": nn.Linear(4, 4)})
        self.add_module("last", nn.Identity())
def f(x):
    y = x.double()
    assert x.std().shape == () and torch.var(x, -1).shape == torch.std_mean(x, -1)[0].shape == (4,)
    assert x.median() == 7 and torch.quantile(y, 0.4) == 6 and torch.nansum(x) == 120 and x.median(-1).indices[0] == 1
    assert x.sort(descending=True).values[0].tolist() == (3, 2, 1, 0) and torch.argsort(x)[0, 1] == 1
    assert x.topk(2).values[0].tolist() == (3, 2) and torch.unique(x).shape == (16,) and x.count_nonzero() == 15
    assert torch.histc(x, 4).tolist() == (4, 4, 4, 4) and torch.isin(x, torch.tensor([1.0])).sum() == 1
    assert not torch.isposinf(x).any() and not torch.isneginf(x).any() and torch.iinfo(torch.int32).max == 2**31 - 1
    assert torch.finfo(torch.float32).resolution == 1e-6 and torch.finfo().max > 1e38
    assert x.addcdiv(x, x + 1).shape == x.addcmul_(x, x).shape == (4, 4) and x.add_(1).addcdiv_(x, x).shape == (4, 4)
    assert torch.linalg.norm(torch.tensor([3.0, 4.0])) == 5
    assert x.data_ptr() == 0 and x.get_device() == torch.get_device(x) == -1
    torch.testing.assert_close(x, x + 1e-7)
    try:
        torch.testing.assert_close(x, x + 1)
    except AssertionError:
        layer = Layer().float()
    names = ["norm.weight", "norm.bias", "parts.a.weight", "parts.a.bias"]
    assert [name for name, _ in layer.named_parameters()] == names
    assert [*layer.parts] == ["a"] and "a" in layer.parts and layer.parts["a"] in layer.parts.values()
    assert layer.last(layer.norm(x)).mean().abs() < 1e-6
    return nn.Transformer.generate_square_subsequent_mask(3)
"""
    mask = module(tmp_path, text).f(torch.arange(16.0).view(4, 4))
    assert torch.equal(mask, nn.Transformer.generate_square_subsequent_mask(3))


@pytest.mark.parametrize(
    "words", ["x.layout", "x.is_cpu", "torch.nn.functional.dropout(x, 0.5)", "torch.absolutely(x)"]
)
def test_other_words_that_are_refused(tmp_path: Path, words: str) -> None:
    with pytest.raises(CallFailed, match="can't be used in graded code"):
        module(tmp_path, HEAD + f"return {words}").f(torch.ones(2, 2), 0)

"""Every operator of every task and kernel folder under PyTorch: opcheck, and no gradient lost silently.

The calls in the tasks' smallest cases are recorded; the rest are called here.
"""

from __future__ import annotations

import importlib
from functools import cache
from types import SimpleNamespace

import flash_room as flash
import pytest
import torch
from torch.utils._pytree import tree_map_only

from common.compiling.gaps import registered_operators
from common.compiling.load import load
from common.compiling.manifest import tasks
from common.compiling.places import rooms
from common.compiling.request import BuildRequest
from common.compiling.results import fake_of, results_of
from common.compiling.variant import Variant
from common.console.paths import ROOT
from common.kernels.attention import attention
from common.kernels.attention_gradients import register
from common.testing.calling import InProcess

ATTENTION = (torch.randn(1, 2, 5, 8), torch.randn(1, 2, 7, 8), torch.randn(1, 2, 7, 8))
NO_TENSOR = {
    "step_blocks",
    "draw_fits",
    "step_fits",
    "linear_fits",
    "plan_steps",
    "flash_attention_kernel",
    "flash_attention_backward_kernel",
    "packed_attention_kernel",
}  # a number or name that depends on the machine


class Recorder:
    """Forwards calls to the operators and records the arguments of the first call of each."""

    def __init__(self, ops) -> None:
        self.ops, self.calls = ops, {}

    def __getattr__(self, name):
        attribute = getattr(self.ops, name)
        if name not in self.ops.libraries[0].operators:
            return attribute

        def call(*args, **kwargs):
            copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
            self.calls.setdefault(name, (copies, kwargs))
            return attribute(*args, **kwargs)

        return call


@cache
def loaded(place: str):
    return load(BuildRequest(place, "solution" if place.startswith("task") else None, backend="simulator"))


def recorded(task: str) -> dict[str, tuple[list, dict]]:
    """Operator -> the arguments of its first call in the task's two smallest cases of each part."""
    cases = importlib.import_module(f"{task}.test").TEST.cases(Variant.SOLUTION)
    recorder = Recorder(loaded(task))
    made = [(case, case.inputs(torch.Generator().manual_seed(0))) for case in cases if not case.gpu_only]
    made.sort(key=lambda one: sum(x.numel() for x in one[1].values() if isinstance(x, torch.Tensor)))
    seen = dict.fromkeys((case.part for case, _ in made), 0)
    for case, inputs in made:
        if seen[case.part] < 2:
            seen[case.part] += 1
            InProcess(recorder).call(case, inputs)
    return recorder.calls


def of_room(room: str) -> dict[str, list]:
    """Operator -> arguments, for operators that only the fast kernels have."""
    query, key, value = ATTENTION
    ints = lambda *x: torch.tensor(x, dtype=torch.int32)  # noqa: E731
    pages, table = torch.randn(4, 2, 16, 8), ints(0, 1).view(1, 2)
    window, stride = (query, key, value, 3), (query, key, value, 2)
    blocks = torch.ones(2, 1, 2, dtype=torch.bool)
    ops = loaded(room)
    if room == "sparse":
        counts, columns = ops.compress_block_mask(blocks)
        long = torch.randn(1, 2, 128, 8), torch.randn(1, 2, 256, 8), torch.randn(1, 2, 256, 8)
        sparse = (*long, counts, columns, 128)
        names = ("strided_attention", stride), ("sliding_window_attention", window), ("block_sparse_attention", sparse)
        half = [
            (name, [x.half() if torch.is_tensor(x) and x.is_floating_point() else x for x in a]) for name, a in names
        ]
        return {f"{name}{end}": a for name, a in half for end in ("", "_forward")} | {"compress_block_mask": [blocks]}
    if room == "flash":
        sinks, seed = torch.randn(2), torch.tensor([7])
        options = 2.0, sinks, 0.3, seed, 4, 1
        half, mask = [x.bfloat16() for x in ATTENTION], torch.randn(5, 7)
        dense = [*half, True, 0.3, False, mask, True, 1, 0, False, *options]
        out, lse = ops.flash_attention_forward(*dense)
        rows = [x[0].transpose(0, 1).contiguous() for x in (query, key, value)]
        packed = [*rows, ints(0, 2, 5), ints(0, 6, 7), True, None, True, False, *options]
        packed_out, packed_lse = ops.packed_attention(*packed)
        long = torch.randn(1, 2, 32, 8), torch.randn(1, 2, 64, 8), torch.randn(1, 2, 64, 8)
        blocks_of = [*long, ints(1, 2).view(2, 1), ints(1, -1, 0, 1).view(2, 1, 2), 32, True, None]
        block_out, block_lse = ops.block_attention(*blocks_of)
        backward = [torch.randn_like(out), *dense[:3], out, lse, *dense[3:7], *dense[8:]]
        return {
            "flash_attention": [query, key, value, True],
            "flash_attention_forward": dense,
            "flash_attention_backward": backward,
            "flash_merge": [out.clone(), lse.clone(), out, lse],
            "packed_attention": packed,
            "packed_attention_backward": [torch.randn_like(rows[0]), *rows, packed_out, packed_lse, *packed[3:]],
            "block_attention": blocks_of,
            "block_attention_backward": [
                torch.randn_like(block_out),
                *blocks_of[:3],
                block_out,
                block_lse,
                *blocks_of[3:],
            ],
            "dropout_mask": [seed, 0.3, 1, 2, 3, 4],
        }
    if room == "decode":
        token, cache_of = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 32, 8)
        return {
            "update_cache": [cache_of.clone(), cache_of.clone(), token, token, ints(3)],
            "decode_attention": [token, cache_of, cache_of.clone(), ints(4)],
            "update_cache_paged": [pages.clone(), pages.clone(), token, token, ints(3), table],
            "decode_attention_paged": [token, pages, pages.clone(), ints(20), table],
            "update_cache_rotary": [
                *(token, pages.clone(), pages.clone(), token, token, ints(3)),
                *(torch.randn(32, 4), torch.randn(32, 4), True, ints(0), table),
            ],
        }
    a, x = torch.randn(2, 3, 4), torch.randn(3, 5)
    if room == "gemm":
        nn, nt = (a, torch.randn(2, 4, 5)), (a, torch.randn(2, 5, 4))
        return {"gemm_nn": nn, "gemm_nt": nt, "gemm_nn_step": (*nn, 1), "gemm_nt_step": (*nt, 1)}
    if room == "softmax":
        return {"softmax": [x], "softmax_step": [x, 1]}
    return {"layernorm": [x, None, torch.ones(5), torch.zeros(5), 1e-5], "bias_gelu": [x, torch.ones(5)]}


def _half(x):
    return x.half() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def operator_of(place: str, name: str):
    return getattr(getattr(torch.ops, loaded(place).libraries[0].name), name).default


@pytest.mark.parametrize("place", [*tasks(), *rooms()])
def test_opcheck(place):
    """Schema, fake kernel, autograd and dynamic shapes, by PyTorch's own checker."""
    if place in rooms():
        register(loaded(place))
    calls = recorded(place) if place in tasks() else {name: (args, {}) for name, args in of_room(place).items()}
    assert calls
    for name, (args, kwargs) in calls.items():
        torch.library.opcheck(operator_of(place, name), tuple(args), kwargs)


@pytest.mark.parametrize("place", [*tasks(), *rooms()])
def test_every_operator_is_described(place):
    binding = loaded(place).libraries[0].sources[-1]
    described = results_of(binding)
    assert set(described) == set(registered_operators(binding)) - NO_TENSOR
    for name, texts in described.items():
        returned = [str(one.type) for one in operator_of(place, name)._schema.returns]
        assert returned == ["Tensor"] * len(texts), name


def test_what_is_described_is_what_comes():
    """The fake kernels against the real ones, on every recorded call: shapes, dtypes and strides."""
    for task in tasks():
        for name, (args, kwargs) in recorded(task).items():
            operator = operator_of(task, name)
            right = operator(*args, **kwargs)
            with torch._subclasses.FakeTensorMode() as mode:
                fakes = tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
                fake = operator(*fakes[0], **fakes[1])
            for one, other in zip(_tuple(right), _tuple(fake), strict=True):
                assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride()), name


def _tuple(x) -> tuple:
    return () if x is None else x if isinstance(x, tuple) else (x,)


def test_a_gradient_that_cannot_be_had_is_an_error_and_not_none():
    ops = loaded("task2")
    x = torch.randn(3, 5, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"task2 softmax has no backward pass.*no_grad"):
        (x + ops.softmax(x)).sum().backward()
    assert x.grad is None
    with torch.no_grad():
        assert torch.equal(ops.softmax(x), ops.softmax(x.detach()))
    with pytest.raises(NotImplementedError, match="task2 gemm_nt has no backward pass"):
        ops.gemm_nt(torch.randn(1, 2, 3), b=torch.randn(1, 2, 3, requires_grad=True)).sum().backward()
    with pytest.raises(NotImplementedError, match="task2 softmax has no backward pass"):
        torch.func.grad(lambda x: ops.softmax(x).sum())(x.detach())


def test_an_operator_whose_gradient_is_known_has_it_when_called_by_name():
    ops = flash.load("simulator")
    query, key, value = (x.clone().requires_grad_() for x in ATTENTION)
    ops.flash_attention(query, key, value, False).sum().backward()
    exact = [x.detach().double().requires_grad_() for x in (query, key, value)]
    torch.nn.functional.scaled_dot_product_attention(*exact).sum().backward()
    for x, right in zip((query, key, value), exact, strict=True):
        torch.testing.assert_close(x.grad.double(), right.grad, rtol=1e-5, atol=1e-5)


def test_an_operator_that_writes_refuses_what_requires_a_gradient():
    ops = loaded("task6")
    caches = torch.zeros(2, 1, 1, 4, 8)
    key = torch.randn(1, 1, 1, 8, requires_grad=True)
    positions = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(NotImplementedError, match=r"task6 update_cache writes into its arguments.*no_grad"):
        ops.update_cache(caches[0], caches[1], key, key, positions)
    assert not caches.any()


@pytest.mark.parametrize("differentiate", [torch.func.jvp, lambda f, x, t: torch.func.jacfwd(f)(*x)])
def test_forward_mode_is_refused(differentiate):
    x = torch.randn(3, 5)
    with pytest.raises(NotImplementedError, match="softmax has no forward-mode derivative"):
        differentiate(loaded("task2").softmax, (x,), (torch.ones_like(x),))
    query, key, value = ATTENTION
    with pytest.raises(NotImplementedError, match="attention has no forward-mode derivative"):
        differentiate(lambda q: attention(q, key, value), (query,), (torch.ones_like(query),))


def test_a_compiled_graph_without_breaks():
    """fullgraph: a task's operators, including those with an int for a size."""
    ops = loaded("task6")
    query, cache_of = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 6, 8)
    lengths = torch.tensor([5], dtype=torch.int32)

    def f(query):
        outs, lse = ops.decode_attention_split(query, cache_of, cache_of, lengths, 2)
        return outs * 2, lse

    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for one, other in zip(compiled(query), f(query), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("texts", "shapes"),
    [
        (["x"], [(2, 3)]),
        (["x.1 n x.0*n"], [(3, 4, 8)]),
        (["16 x.0"], [(16, 2)]),
        (["n x.0", "x : int32"], [(4, 2), (2, 3)]),
        ([], []),
    ],
)
def test_the_language_of_results(texts, shapes):
    argument = lambda name: SimpleNamespace(name=name, default_value=4)  # noqa: E731
    schema = SimpleNamespace(arguments=[argument("x"), argument("n")])
    made = _tuple(fake_of(schema, texts)(torch.zeros(2, 3)))
    assert [tuple(x.shape) for x in made] == shapes
    assert [x.dtype for x in made] == [torch.int32 if "int32" in text else torch.float32 for text in texts]


def test_every_place_has_its_results():
    bindings = {*ROOT.glob("task*/given/binding.cpp"), *ROOT.glob("common/kernels/*/binding.cpp")}
    assert len(bindings) == len(tasks()) + len(rooms())
    assert all(results_of(binding) for binding in bindings)

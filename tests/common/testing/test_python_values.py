"""The first thing that goes wrong in a student's Python: planted mistakes are reported with lines, right code never."""

import importlib
import importlib.util
import re

import pytest
import torch
from written_modules import written_module

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.testing import python_values
from common.testing.calling import Around, InProcess, poisoned_memory
from common.testing.case import Call
from common.testing.case_choice import full_name
from common.testing.judging import make_inputs
from common.testing.python_side import python_module
from common.testing.python_values import first_wrong, told
from common.testing.watching import Watched, read

CASES = {task: importlib.import_module(f"{task}.cases").cases() for task in ("task1", "task3", "task6")}
LARGEST = 100_000  # in a case's inputs


def in_double(inputs):
    return {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}


@pytest.mark.parametrize("task", CASES)
def test_of_a_right_solution_every_call_is_right(task):
    caller, functions = InProcess(load(BuildRequest(task, "solution", backend="simulator"))), set()
    for case in CASES[task]:
        inputs = {} if case.gpu_only or not case.python else make_inputs(case, 0)
        if not inputs or sum(x.numel() for x in inputs.values()) > LARGEST:
            continue
        caller.call(case, inputs, Around(watched=True))
        calls = caller.more["python"]
        assert calls, full_name(case)
        functions |= {one["function"] for one in calls}
        wrong = first_wrong(case, calls, in_double(inputs))
        assert wrong is None, f"{full_name(case)}: {wrong.says}"
    known = {name for case in CASES[task] if case.python for name in case.python.right}
    assert functions == known


# task, file, part of its text, the planted text, a case, the report, the reported lines
PLANTED = [
    ("task3", "P = torch.exp(S - shift)", "P = torch.exp2(S - shift)", "algorithm: causal, 96 tokens",
     r"call of add_tile returns a wrong result for correct arguments\. `l` at .*`O` is wrong.*`m`.* are right",
     ["P = torch.exp2(S - shift)", "l = rescale", "O = rescale", "return RowState"]),
    ("task3", "tile = slice(k_start, k_start + B_c)", "tile = slice(k_start, k_start + B_c - 1)",
     "algorithm: causal, 96 tokens", r"call of attend returns a wrong result",
     ["state = nothing", "seen = min", "for k_start", "tile = slice", "S = ", "state = add_tile", "return state"]),
    ("task1", "weights = torch.softmax(scores, dim=-1)", "weights = torch.softmax(scores, dim=-2)",
     "layer: as MultiheadAttention, causal", r"`query`, `key`, `value`, `scores` and `future` are right",
     ["weights = torch", "heads = weights", "return self.out"]),
    ("task1", "value = value.view(split).transpose(1, 2)",
     "value = key.view(split).transpose(1, 2) if key.dim() == 3 else key", "layer: as MultiheadAttention, causal",
     r"`weights` are right. `value` holds what `key` should.",
     ["batch, seq_len", "split =", "value = key", "heads = weights", "return"]),
    ("task1", "scores = scores.masked_fill(future, -torch.inf)", "scores.masked_fill(future, -torch.inf)",
     "layer: as MultiheadAttention, causal", r"The result of line \d+ is not kept: `masked_fill` changes no tensor in",
     ["scores = query", "if self.causal", "scores.masked_fill(", "weights = ", "heads = ", "return self.out"]),
    (  # its value is right, but for another variable
        "task1",
        "heads = weights @ value\n        return self.out_projection(self.merge_heads(heads))",
        "mixed = value\n        return self.out_projection(self.merge_heads(mixed))",
        "layer: as MultiheadAttention, causal",
        r"`query`, `key`, `value`, `scores`, `future` and `weights` are right\.$",
        ["mixed = value", "return self.out"],
    ),
    ("task6", "merged, shift + torch.log(total)", "merged, shift - torch.log(total)", "ring: merge: lse",
     r"Part 2 of what it returns at .*\. Part 1 of what it returns, .*`total`.* are right",
     ["return merged, shift - torch"]),
]  # fmt: skip


@pytest.mark.parametrize(("task", "right", "wrong", "name", "says", "lines"), PLANTED)
def test_the_first_wrong_call_is_told_with_its_lines(task, right, wrong, name, says, lines, tmp_path):
    case = next(one for one in CASES[task] if full_name(one) == name)
    original = python_module(task, "solution", case.python.module)
    text = importlib.util.find_spec(original.__name__).loader.get_source(original.__name__)
    assert text.count(right) == 1
    module = written_module(tmp_path / "planted.py", text.replace(right, wrong))
    inputs = make_inputs(case, 0)
    with torch.no_grad(), Watched(module, case.python.right) as watched:
        if task == "task3":
            module.flash_attention(*inputs.values(), True, None, 32, 16)
        elif task == "task6":
            module.merge(**inputs)
        else:
            layer = module.MultiHeadAttention(24, 3, True)
            for linear, at in ((layer.qkv_projection, "in"), (layer.out_projection, "out")):
                linear.weight.copy_(inputs[f"{at}_weight"])
                linear.bias.copy_(inputs[f"{at}_bias"])
            layer(inputs["x"])
    found = told(case, watched.calls, in_double(inputs))
    assert re.search(says, found.says), found.says
    assert all(any(one in text for _, text in found.lines) for one in lines), found.lines
    assert len(found.lines) == len(lines), found.lines


def test_kernels_of_another_task_are_mentioned_only_of_calls_that_may_use_them():
    case = next(one for one in CASES["task6"] if full_name(one) == "pipeline: three prompts in turn")
    numbers = [one for one in range(1, 13) if case.python.but_for(Call("forward", one, {}, {}))]
    assert numbers == [1, 5, 10]


def test_of_statements_that_only_compute_a_new_tensor_the_result_is_not_kept():
    def said(statement):
        return python_values._not_kept(f"def forward(self, x, seen):\n    x = 2 * x\n    {statement}\n", 60)

    for statement in ("x.transpose(1, 2)", "x.view(3, 4)", "torch.exp(x - 1)", "x.masked_fill(x > 0, 1)"):
        name = statement.split(".")[1].split("(")[0]
        assert said(statement) == f" The result of line 62 is not kept: `{name}` changes no tensor in place."
    for statement in ("x.exp_()", "y = x.exp()", "torch.exp(x, out=x)", "seen.add(1)", "self.cache.append(x)", "x[0]"):
        assert said(statement) == ""


def test_a_tensor_is_kept_as_it_was_when_the_function_began(tmp_path):
    module = written_module(tmp_path / "changing.py", "def change(x):\n    return x.add_(1)\n")
    with Watched(module, {"change"}) as watched, poisoned_memory():
        module.change(torch.tensor([1.0, 2.0]))
        module.change(torch.empty(0))
    first, second = watched.calls
    assert read(first["arguments"]["x"]).tolist() == [1, 2]
    assert read(first["returned"]).tolist() == [2, 3]
    assert (second["number"], read(second["returned"]).tolist()) == (2, [])


@pytest.mark.parametrize("sent", [[{}], [{"function": "merge"}], [{"function": "merge", "number": 1, "arguments": 3}]])
def test_what_a_worker_should_not_have_sent_tells_nothing(sent):
    case = next(one for one in CASES["task6"] if full_name(one) == "ring: merge: lse")
    assert told(case, sent, make_inputs(case, 0)) is None


def test_a_call_that_an_error_goes_through_did_not_return(tmp_path):
    text = "def inner(x):\n    return None\n\n\ndef outer(x):\n    inner(x)\n    return x.nothing\n"
    module = written_module(tmp_path / "failing.py", text)
    with Watched(module, {"inner", "outer"}) as watched, pytest.raises(AttributeError):
        module.outer(torch.ones(1))
    assert [(one["function"], one["returned"]) for one in watched.calls] == [("inner", None)]

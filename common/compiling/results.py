"""Registers the shapes and dtypes of operators' results with PyTorch, for torch.compile, torch.export and meta tensors.

Next to every binding.cpp is a results.json: each operator's name, and a text for each tensor that it returns:

    {"gemm_nt": ["a.0 a.1 b.1"], "online_softmax": ["x", "x.0"], "compress_block_mask": ["block_mask.0 ... : int32"]}

    x               x's shape and dtype
    a.0 b.1         sizes: dimension 0 of a, dimension 1 of b; dtype of the first argument named
    query.0*query.1 a product of sizes; splits: the value of an int argument; 64: that number
    ... : float32   this dtype

Results are contiguous and on the arguments' device. An operator that writes into its arguments has [].
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

NAME = "results.json"
_registered: set[str] = set()  # namespaces of torch.ops


def results_of(binding: Path) -> dict[str, list[str]]:
    """The results.json next to a binding.cpp; empty if there is none."""
    file = binding.with_name(NAME)
    return json.loads(file.read_text()) if file.exists() else {}


def register_results(namespace: str, binding: Path) -> None:
    """Registers the results of the operators of torch.ops.<namespace>; repeated calls do nothing."""
    if namespace in _registered:
        return
    for operator, texts in results_of(binding).items():
        schema = getattr(getattr(torch.ops, namespace), operator).default._schema
        torch.library.register_fake(f"{namespace}::{operator}", fake_of(schema, texts))
    _registered.add(namespace)


def fake_of(schema: torch.FunctionSchema, texts: Sequence[str]) -> Callable:
    """A fake implementation: takes the operator's arguments, returns empty tensors of the shapes given by `texts`."""

    def fake(*args, **kwargs) -> Tensor | tuple[Tensor, ...] | None:
        given = {argument.name: argument.default_value for argument in schema.arguments}
        given |= dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
        made = tuple(_made(text, given) for text in texts)
        return (made[0] if len(made) == 1 else made) if made else None

    return fake


def _made(text: str, given: Mapping[str, object]) -> Tensor:
    shape, _, dtype = (part.strip() for part in text.partition(":"))
    first = given.get(shape.split()[0].split("*")[0].split(".")[0])
    if not isinstance(first, Tensor):  # the first size is a number
        first = next(x for x in given.values() if isinstance(x, Tensor))
    if shape in given:
        sizes = first.shape
    else:
        sizes = [math.prod(_size(factor, given) for factor in one.split("*")) for one in shape.split()]
    return first.new_empty(sizes, dtype=getattr(torch, dtype) if dtype else first.dtype)


def _size(text: str, given: Mapping[str, object]) -> int:
    if text.isdigit():
        return int(text)
    name, _, dimension = text.partition(".")
    return given[name].size(int(dimension)) if dimension else given[name]

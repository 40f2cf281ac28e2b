"""What the functions of attention.py must return for given arguments: FUNCTIONS, see common.testing.case.Python."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import computed, divided, shift_of
from common.diagnosis.mistakes.softmax import STEP
from common.reference import oracle as reference
from common.testing.case import Call, Python


def _scores(call: Call) -> Mapping[str, Tensor]:
    given = call.arguments
    before = given["query_tile"] @ given["key_tile"].mT * given["scale"]
    queries, keys = (
        given[start] + torch.arange(size)
        for start, size in (("q_start", before.size(-2)), ("k_start", before.size(-1)))
    )
    hidden = keys > queries[:, None]
    after = before.masked_fill(hidden, -math.inf) if given["causal"] else before
    return {"returned": after, "before the mask": before, "hidden": hidden, "queries": queries, "keys": keys}


def _step(call: Call) -> Mapping[str, Tensor | Mapping[str, Tensor]]:
    state = call.arguments["state"]
    after = computed(STEP, {**state, "S": call.arguments["S"], "V": call.arguments["value_tile"]})
    found = {name: after[name] for name in ("P", "rescale")}
    return {"returned": {name: after[name] for name in state}, **found, "shift": shift_of(after["m"])}


def _all_keys(call: Call) -> Mapping[str, Mapping[str, Tensor]]:
    given = call.arguments
    query, key, value = (given[name] for name in ("query_tile", "key", "value"))
    s = query @ key.mT * given["scale"]
    if given["causal"]:
        rows = given["q_start"] + torch.arange(query.size(-2))
        s = s.masked_fill(torch.arange(key.size(-2)) > rows[:, None], -math.inf)
    m = s.amax(-1, keepdim=True)
    p = torch.exp(s - shift_of(m))
    return {"returned": {"m": m, "l": p.sum(-1, keepdim=True), "O": p @ value}}


def _output(call: Call) -> Mapping[str, Tensor]:
    state = call.arguments["state"]
    return {"returned": divided(state["O"], state["l"])}


def _whole(call: Call) -> Mapping[str, Tensor | Mapping[str, Tensor]]:
    given = call.arguments
    query, key, value = (given[name] for name in ("query", "key", "value"))
    out = reference.attention(query, key, value, given["causal"], given["scale"])
    lse = torch.logsumexp(reference.scores(query, key, given["causal"], given["scale"]), -1)
    both = {"out": out, "lse": lse}
    return {"returned": {"0": out, "1": lse} if given["return_lse"] else out, **both}


FUNCTIONS = Python(
    "attention",
    {
        "tile_scores": _scores,
        "add_tile": _step,
        "attend": _all_keys,
        "output_of": _output,
        "flash_attention": _whole,
    },
)

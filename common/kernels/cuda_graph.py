"""A call as a CUDA graph: captured(call)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def captured(call: Callable[[], Any], pool: Any = None) -> Callable[[], Any]:
    """The call as a CUDA graph: what is returned replays it, in microseconds and without Python.

    The call runs once beforehand, since what libraries set up at their first call must not be captured. A replay
    returns what the captured call returned: tensors that every replay writes anew.

    pool: torch.cuda.graph_pool_handle(), the memory that several graphs share (None: its own). Then no two of them may
    run at the same time, and each may write over what another one's call made.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = call()
    # The graph knows only where its tensors are, so the call, which holds them, has to live as long
    return functools.partial(_replay, graph, result, call)


def _replay(graph: torch.cuda.CUDAGraph, result: Any, _holds_tensors: Callable[[], Any]) -> Any:
    graph.replay()
    return result

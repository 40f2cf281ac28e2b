"""captured(call): a call as a CUDA graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def captured(call: Callable[[], Any], pool: Any = None) -> Callable[[], Any]:
    """Captures the call as a CUDA graph: the returned function replays it, in microseconds and without Python.

    The call runs once beforehand, since one-time library initialization must not be captured. A replay returns what the
    captured call returned: tensors that every replay overwrites.

    pool: torch.cuda.graph_pool_handle(), a memory pool shared by several graphs (None: its own). Then no two of them
    may run at the same time, and each may overwrite the results of another.
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
    # The graph only knows the addresses of its tensors, so the call, which owns them, has to live as long
    return functools.partial(_replay, graph, result, call)


def _replay(graph: torch.cuda.CUDAGraph, result: Any, _holds_tensors: Callable[[], Any]) -> Any:
    graph.replay()
    return result

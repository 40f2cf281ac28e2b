"""Several ranks of a process group on one machine, for tests.

    results = in_ranks(3, function, *arguments)     function(rank, ranks, *arguments) in three processes, over gloo

The processes are forked from a server that has imported torch once. A function is defined at the top level of a file;
the processes load that file themselves, since a test file has no importable module name.
"""

from __future__ import annotations

import multiprocessing
import runpy
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path

PRELOADED = ["torch", "torch.distributed", "common.kernels.distributed.attention"]


def in_ranks(ranks: int, function: Callable, *arguments, timeout: float = 60, patience: float = 240) -> list:
    """What function(rank, ranks, *arguments) returned, by rank: plain data. An exception is returned, not raised.

    Args:
        timeout: of the process group, seconds.
        patience: seconds allowed for everything; then the remaining processes are killed and TimeoutError is raised.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe(duplex=False)
            place = (function.__code__.co_filename, function.__name__)
            given = (theirs, str(Path(folder) / "store"), rank, ranks, timeout, place, arguments)
            processes.append(context.Process(target=_rank, args=given, daemon=True))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        try:
            return _answers(pipes, patience)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _answers(pipes: Sequence[Connection], patience: float) -> list:
    answers: dict[Connection, object] = {}
    while len(answers) < len(pipes):
        ready = wait([pipe for pipe in pipes if pipe not in answers], patience)
        if not ready:
            missing = [rank for rank, pipe in enumerate(pipes) if pipe not in answers]
            raise TimeoutError(f"ranks {missing} did not answer within {patience} s")
        for pipe in ready:
            try:
                answers[pipe] = pipe.recv()
            except EOFError:
                answers[pipe] = EOFError("the rank ended without an answer")
    return [answers[pipe] for pipe in pipes]


def _rank(answer, store, rank, ranks, timeout, place, arguments) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    file, name = place
    function = runpy.run_path(file)[name]
    dist.init_process_group("gloo", f"file://{store}", timedelta(seconds=timeout), ranks, rank)
    Path(f"{store}.{rank}").touch()  # gloo connects pairwise: a peer may still be waiting for a rank that exits now
    while not all(Path(f"{store}.{other}").exists() for other in range(ranks)):
        time.sleep(0.01)
    try:
        answer.send(function(rank, ranks, *arguments))
    except Exception as error:
        error.add_note(traceback.format_exc()) if hasattr(error, "add_note") else None
        answer.send(error)

"""What a prefill of the lean engine is made of, on a GPU: python -m task7.tools.prefill_profile [tokens]

GPT-2 124M with random weights, float16, one prompt: the time to first token, the graph's time on the GPU, what the host
does before and at its launch, its kernels.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

from common.kernels.gpt2.engine import Engine
from task7.given.operators import load_engine_kernels
from task7.tools.peers import random_model

RUNS, PROFILED = 25, 5


def median_of(runs: int, call) -> list[float]:
    """Of each number that call() returns."""
    return [statistics.median(column) for column in zip(*(call() for _ in range(runs)), strict=True)]


def describe(engine: Engine, prompt: list[int]) -> None:
    """Prints all of it for one engine."""
    print(engine.how_prefill(len(prompt)))
    engine.warm_up(len(prompt))
    (ttft,) = median_of(RUNS, lambda: [engine.generate([prompt], max_new_tokens=2).ttft_ms])
    step = engine._prepared_step(1, False)
    seq_len = engine._seq_len(len(prompt))
    prefill, buffer = engine._prepared_prefill(step, False, seq_len), engine._buffers[1, False]

    def one():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        times = [time.perf_counter()]
        buffer.put([prompt], seq_len, None)
        times.append(time.perf_counter())
        begin.record()
        prefill()
        times.append(time.perf_counter())
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end), 1e3 * (times[1] - times[0]), 1e3 * (times[2] - times[1])

    on_gpu, put, launch = median_of(RUNS, one)
    print(f"TTFT {ttft:.3f} ms; graph on the GPU {on_gpu:.3f}; host: input {put:.3f}, launch {launch:.3f}")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(PROFILED):
            buffer.put([prompt], seq_len, None)
            prefill()
        torch.cuda.synchronize()
    kernels = sorted(profile.key_averages(), key=lambda one: -one.device_time_total)
    for one in kernels[:20]:
        each, calls = one.device_time_total / one.count, one.count / PROFILED
        print(f"{calls:6.1f} x {each:7.2f} us = {each * calls:7.1f} us  {one.key[:100]}")
    total = sum(one.device_time_total for one in kernels) / PROFILED
    print(f"{sum(one.count for one in kernels) / PROFILED:.0f} kernels and copies, {total:.0f} us\n")


def main() -> int:
    """The command line; exit status 2: no GPU."""
    if not torch.cuda.is_available():
        print("This needs a GPU.")
        return 2
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    model = random_model("gpt2", torch.float16)
    prompt = torch.randint(model.config.vocab_size, (tokens,)).tolist()
    kernels = load_engine_kernels("tuned", "cuda")
    describe(Engine(model, kernels, "float16", 1, min(tokens + 128, 1024)), prompt)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

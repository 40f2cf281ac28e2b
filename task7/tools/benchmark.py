"""python -m task7.benchmark: how long GPT-2 124M takes to its first token, and from token to token, on a GPU.

Random weights, float16, a prompt of 512 tokens, one sequence, greedy; beside the engine on the tuned kernels:

    eager, sdpa     transformers with these attentions and a DynamicCache
    static          transformers with a StaticCache and torch.compile(mode="reduce-overhead"); compiling takes a while

Everything runs in one process, every peer after a run that is not counted. Times are the host's, from one token's
arrival there to the next one's; every peer brings every token to the host. A step reads all weights once and computes
next to nothing with them, so what it takes at least is their bytes over the bandwidth of a copy, measured here too.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

PEERS = ("eager", "sdpa", "static")
DTYPES = ("float16", "bfloat16", "float32")

# generate(prompt, new_tokens) -> (time to first token, times between tokens), milliseconds
Generate = Callable[[list, int], tuple[float, list]]


@dataclass(frozen=True)
class Measured:
    """Of one peer, in milliseconds: times to first token, one per run, and times between tokens of the last run."""

    ttft: list
    tbt: list

    @property
    def tbt_median(self) -> float:
        return statistics.median(self.tbt)


def measure(generate: Generate, prompt: list, new_tokens: int, runs: int) -> Measured:
    """Two runs that do not count, then `runs`."""
    for _ in range(2):
        generate(prompt, new_tokens)
    results = [generate(prompt, new_tokens) for _ in range(runs)]
    return Measured([ttft for ttft, _ in results], results[-1][1])


def engine(model, dtype: str, variant: str, max_seq_len: int) -> Generate:
    """Ours."""
    from common.kernels.gpt2.engine import Engine
    from common.kernels.gpt2.engine_kernels import load_engine_kernels

    made = Engine(model, load_engine_kernels(variant, "cuda"), dtype, max_seq_len=max_seq_len)

    def generate(prompt, new_tokens):
        result = made.generate([prompt], max_new_tokens=new_tokens)
        return result.ttft_ms, result.tbt_ms

    return generate


def transformers_peer(model, attention: str) -> Generate:
    """transformers' modules with a DynamicCache. attention: "eager" or "sdpa"."""
    import torch
    from transformers import DynamicCache

    @torch.no_grad()
    def generate(prompt, new_tokens):
        model.set_attn_implementation(attention)
        cache = DynamicCache(config=model.config)

        def step(tokens):
            return model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits

        return _timed(step, prompt, new_tokens, lambda number: step)

    return generate


def compiled_peer(model, max_seq_len: int) -> Generate:
    """transformers' modules with a StaticCache; the steps are compiled, CUDA graphs included."""
    import torch
    from transformers import StaticCache

    model.set_attn_implementation("sdpa")
    compiled = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    cache = StaticCache(config=model.config, max_cache_len=max_seq_len)

    @torch.no_grad()
    def generate(prompt, new_tokens):
        model.set_attn_implementation("sdpa")
        cache.reset()
        positions = torch.arange(max_seq_len, device=model.device)

        def prefill(tokens):
            return model(
                tokens, past_key_values=cache, use_cache=True, cache_position=positions[: len(prompt)], logits_to_keep=1
            ).logits

        def step(number):
            at = len(prompt) + number - 1
            return lambda tokens: (
                compiled(
                    tokens,
                    past_key_values=cache,
                    use_cache=True,
                    cache_position=positions[at : at + 1],
                    position_ids=positions[None, at : at + 1],
                ).logits
            )

        return _timed(prefill, prompt, new_tokens, step)

    return generate


def _timed(prefill, prompt: list, new_tokens: int, step) -> tuple[float, list]:
    """Greedy generation. prefill(tokens) and step(number)(tokens) give logits [1, tokens, vocab]."""
    import torch

    times = [time.perf_counter()]
    tokens = torch.tensor([prompt], device="cuda")
    for number in range(new_tokens):
        tokens = (step(number) if number else prefill)(tokens)[:, -1:].argmax(-1)
        tokens.item()  # waits
        times.append(time.perf_counter())
    between = [1e3 * (after - before) for before, after in itertools.pairwise(times)]
    return between[0], between[1:]


def table(measured: dict[str, Measured], limit_ms: float, title: str) -> Table:
    """A line per peer: both times, and the share of the limit."""
    result = Table(title=escape(title), title_justify="left")
    result.add_column("")
    for column in ("TTFT\nms", "TBT\nms", "80% between\nms", "tokens/s", "weights /\nbandwidth", "times\nours"):
        result.add_column(column, justify="right", no_wrap=True)
    ours = next(iter(measured.values()))
    for name, one in measured.items():
        tbt = sorted(one.tbt)
        result.add_row(
            escape(name),
            f"{statistics.median(one.ttft):.2f}",
            f"{one.tbt_median:.3f}",
            f"{tbt[len(tbt) // 10]:.3f} .. {tbt[len(tbt) * 9 // 10]:.3f}",
            f"{1e3 / one.tbt_median:,.0f}",
            f"{limit_ms / one.tbt_median:.0%}",
            f"{one.tbt_median / ours.tbt_median:.2f}",
        )
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; exit status 0, 1: a kernel does not compile or a peer failed, 2: no GPU."""
    parser = argparse.ArgumentParser(prog="python -m task7.benchmark", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, default=PEERS, metavar="PEER", help=f"default: {' '.join(PEERS)}"
    )
    parser.add_argument("--prompt", type=int, default=512, metavar="N", help="tokens (default 512)")
    parser.add_argument("--new-tokens", type=int, default=128, metavar="N", help="tokens (default 128)")
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="default: %(default)s")
    parser.add_argument(
        "--variant", choices=("tuned", "solution", "student"), default="tuned", help="whose kernels (default: tuned)"
    )
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="prefills of each peer (default 5)")
    options = parser.parse_args(argv)
    total = options.prompt + options.new_tokens
    if options.prompt < 1 or options.new_tokens < 51 or total > 1024 or options.runs < 1:
        parser.error("--prompt must be at least 1, --new-tokens 51, both together at most 1024, and --runs 1")
    console = Console()

    from common.measure import report

    if not report.gpu_is_there(console):
        return report.NEEDS_GPU
    return run(options, total, console)


def run(options: argparse.Namespace, total: int, console: Console) -> int:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from common.compiling.result import BuildError
    from common.compiling.toolchain import ToolchainError
    from common.measure import report
    from common.measure.limits import measure_limits

    torch.manual_seed(0)
    with torch.device("cuda"):
        model = GPT2LMHeadModel(GPT2Config()).to(getattr(torch, options.dtype)).eval()
    prompt = torch.randint(model.config.vocab_size, (options.prompt,)).tolist()
    # Every step reads all matrices, vectors and the head; of the embeddings one row
    read = sum(x.numel() * x.element_size() for x in model.parameters()) - model.transformer.wpe.weight.nbytes
    copy = measure_limits(matmul=()).copy
    ours = f"engine, {options.variant}"
    makers = {
        ours: lambda: engine(model, options.dtype, options.variant, total),
        "eager": lambda: transformers_peer(model, "eager"),
        "sdpa": lambda: transformers_peer(model, "sdpa"),
        "static": lambda: compiled_peer(model, total),
    }
    measured, status = {}, 0
    for name in (ours, *options.peers):
        try:
            measured[name] = measure(makers[name](), prompt, options.new_tokens, options.runs)
        except (BuildError, ToolchainError, RuntimeError, ValueError) as error:
            console.print(f"{name}: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
            status = 1
            if name == ours:
                return status
    machine = report.machine()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()), highlight=False)
    limit_ms = 1e3 * read / copy
    console.print(
        f"weights {read / 1e6:.0f} MB, copy {copy / 1e12:.2f} TB/s: at least {limit_ms:.3f} ms between tokens",
        highlight=False,
    )
    title = f"GPT-2 124M, {options.dtype}, prompt {options.prompt}, {options.new_tokens} new tokens"
    console.width = max(console.width, 110)
    console.print(table(measured, limit_ms, title))
    return status

"""How long a GPT-2 takes to its first token, and from token to token, on a GPU.

Random weights; greedy, unless it says otherwise; by default GPT-2 124M in float16, one sequence, a prompt of 512
tokens. Beside the engine on the tuned kernels:

    persistent      all steps as one kernel
    drawn           that kernel, tokens drawn: temperature 0.8, top-k 40, top-p 0.9
    fp32            ours, a CUDA graph of fused kernels, in float32
    unfused         in float32, the graph of kernels that are not fused and torch's matrix products
    launched        the same kernels, launched one by one
    eager, sdpa     transformers with these attentions and a DynamicCache
    static          transformers with a StaticCache and torch.compile(mode="reduce-overhead"); compiling takes a while

Everything runs in one process, every peer after a run that is not counted. Times are the host's, from one token's
arrival there to the next one's; every peer brings every token to the host. A step reads all weights once and computes
next to nothing with them, so what it takes at least is their bytes over the bandwidth of a copy, measured here too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, StaticCache

from common.cli.benchmark import FAILED, MEASURED, positive
from common.cli.options import EXPECTED_ERRORS, add_variant_arguments, command_of
from common.compiling.variant import Variant
from common.console.terminal import say, wide
from common.console.words import counted, error_words
from common.kernels.gpt2.engine import Engine
from common.measure import report
from common.measure.limits import measure_limits
from common.measure.timing import middle
from task7.given.operators import load_engine_kernels
from task7.tools.options import DTYPES

ENGINE, PEERS = "engine", ("persistent", "drawn", "fp32", "unfused", "launched", "eager", "sdpa", "static")
DRAWN = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
FLOAT32 = ("fp32", "unfused", "launched")  # whose weights have 4 bytes
SIZES = {  # n_embd, n_layer, n_head
    "gpt2": (768, 12, 12),
    "gpt2-medium": (1024, 24, 16),
    "gpt2-large": (1280, 36, 20),
    "gpt2-xl": (1600, 48, 25),
}

# generate(prompts, new_tokens) -> (time to first token, times between tokens), milliseconds
Generate = Callable[[list, int], tuple[float, list]]


@dataclass(frozen=True)
class Measured:
    """Of one version, in milliseconds: times to first token, one per run, and times between tokens of the last run."""

    ttft: list
    tbt: list

    @property
    def tbt_median(self) -> float:
        return statistics.median(self.tbt)


def measure(generate: Generate, prompts: list, new_tokens: int, rounds: int) -> Measured:
    """Two runs that do not count, then `rounds`."""
    for _ in range(2):
        generate(prompts, new_tokens)
    results = [generate(prompts, new_tokens) for _ in range(rounds)]
    return Measured([ttft for ttft, _ in results], results[-1][1])


class EnginePeer:
    """Ours, as a Generate. drawn: what Engine.generate takes to draw. parts: graphs, fused, persistent, see Engine."""

    def __init__(self, model, dtype: str, variant: str, batch: int, max_seq_len: int, drawn=None, **parts) -> None:
        self.drawn = drawn or {}
        self.engine = Engine(model, load_engine_kernels(variant, "cuda"), dtype, batch, max_seq_len, **parts)
        self.how = self.engine.how(batch, bool(drawn))

    def __call__(self, prompts, new_tokens):
        result = self.engine.generate(prompts, max_new_tokens=new_tokens, **self.drawn)
        return result.ttft_ms, result.tbt_ms


def transformers_peer(model, attention: str) -> Generate:
    """transformers' modules with a DynamicCache. attention: "eager" or "sdpa"."""

    @torch.no_grad()
    def generate(prompts, new_tokens):
        model.set_attn_implementation(attention)
        cache = DynamicCache(config=model.config)

        def step(tokens):
            return model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits

        return _timed(step, prompts, new_tokens, lambda number: step)

    return generate


def compiled_peer(model, max_seq_len: int) -> Generate:
    """transformers' modules with a StaticCache; the steps are compiled, CUDA graphs included."""
    model.set_attn_implementation("sdpa")
    compiled = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    cache = StaticCache(config=model.config, max_cache_len=max_seq_len)

    @torch.no_grad()
    def generate(prompts, new_tokens):
        model.set_attn_implementation("sdpa")
        cache.reset()
        positions = torch.arange(max_seq_len, device=model.device)
        cached = {"past_key_values": cache, "use_cache": True}

        def prefill(tokens):
            return model(tokens, cache_position=positions[: len(prompts[0])], logits_to_keep=1, **cached).logits

        def step(number):
            here = positions[len(prompts[0]) + number - 1 :][:1]
            return lambda tokens: compiled(tokens, cache_position=here, position_ids=here[None], **cached).logits

        return _timed(prefill, prompts, new_tokens, step)

    return generate


def _timed(prefill, prompts: list, new_tokens: int, step) -> tuple[float, list]:
    """Greedy generation. prefill(tokens) and step(number)(tokens) give logits [batch, tokens, vocab]."""
    times = [time.perf_counter()]
    tokens = torch.tensor(prompts, device="cuda")
    for number in range(new_tokens):
        tokens = (step(number) if number else prefill)(tokens)[:, -1:].argmax(-1)
        tokens.tolist()  # waits
        times.append(time.perf_counter())
    between = [1e3 * (after - before) for before, after in itertools.pairwise(times)]
    return between[0], between[1:]


def table(measured: Mapping[str, Measured], limits: Mapping[str, float], title: str, batch: int = 1) -> Table:
    """A line per version: both times, and the share of its limit, in ms."""
    result = Table(title=escape(title), title_justify="left")
    result.add_column("")
    for column in ("TTFT\nms", "TBT\nms", "80% between\nms", "tokens/s", "weights /\nbandwidth", "times\nours"):
        result.add_column(column, justify="right", no_wrap=True)
    ours = next(iter(measured.values()))
    for name, one in measured.items():
        low, high = middle(one.tbt)
        result.add_row(
            escape(name),
            f"{statistics.median(one.ttft):.2f}",
            f"{one.tbt_median:.3f}",
            f"{low:.3f} .. {high:.3f}",
            f"{batch * 1e3 / one.tbt_median:,.0f}",
            f"{limits[name] / one.tbt_median:.0%}",
            f"{one.tbt_median / ours.tbt_median:.2f}",
        )
    return result


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m task7.benchmark", description=__doc__.split("\n")[0])
    add_variant_arguments(made, default=Variant.TUNED)
    add = made.add_argument
    add("--versions", nargs="+", choices=PEERS, default=PEERS, metavar="NAME", help=f"beside ours: {', '.join(PEERS)}")
    add("--model", choices=SIZES, default="gpt2", metavar="NAME", help=f"sizes of {', '.join(SIZES)} (default gpt2)")
    add("--batch", type=positive(int), default=1, metavar="N", help="sequences at once (default 1)")
    add("--prompt", type=positive(int), default=512, metavar="N", help="tokens (default 512)")
    add("--new-tokens", type=positive(int), default=128, metavar="N", help="tokens (default 128)")
    add("--dtype", choices=DTYPES, default="fp16", help="default: %(default)s")
    add("--rounds", type=positive(int), default=5, metavar="N", help="prefills of each version (default 5)")
    add("--json", type=argparse.FileType("w"), metavar="FILE", help="write the numbers to FILE")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; exit status 0, 1: a kernel does not compile or a peer failed, 2: no GPU."""
    made = parser()
    options = made.parse_args(argv)
    total = options.prompt + options.new_tokens
    if options.new_tokens < 51 or total > 1024:
        made.error(f"--new-tokens is {options.new_tokens}; it must be 51 or more, and with --prompt at most 1024")
    console = wide(Console())
    if not report.gpu_is_there(console):
        return report.NEEDS_GPU
    return run(options, total, console, command_of("task7.benchmark", argv))


def run(options: argparse.Namespace, total: int, console: Console, command: str) -> int:
    """Times all versions and prints; the exit status."""
    dtype = DTYPES[options.dtype]
    torch.manual_seed(0)
    with torch.device("cuda"):
        width, layers, heads = SIZES[options.model]
        config = GPT2Config(n_embd=width, n_layer=layers, n_head=heads)
        model = GPT2LMHeadModel(config).to(getattr(torch, dtype)).eval()
    prompts = torch.randint(config.vocab_size, (options.batch, options.prompt)).tolist()
    # Every step reads all matrices, vectors and the head; of the embeddings one row
    read = sum(x.numel() * x.element_size() for x in model.parameters()) - model.transformer.wpe.weight.nbytes
    copy = measure_limits(matmul=()).copy
    ours = f"{ENGINE}, {options.variant}"

    def with_parts(of: str, **parts):
        return lambda: EnginePeer(model, of, options.variant, options.batch, total, **parts)

    makers = {
        ours: with_parts(dtype),
        "persistent": with_parts(dtype, persistent=True),
        "drawn": with_parts(dtype, drawn=DRAWN, persistent=True),
        "fp32": with_parts("float32"),
        "unfused": with_parts("float32", fused=False),
        "launched": with_parts("float32", fused=False, graphs=False),
        "eager": lambda: transformers_peer(model, "eager"),
        "sdpa": lambda: transformers_peer(model, "sdpa"),
        "static": lambda: compiled_peer(model, total),
    }
    measured, status = {}, MEASURED
    for name in (ours, *options.versions):
        try:
            peer = makers[name]()
            measured[name] = measure(peer, prompts, options.new_tokens, options.rounds)
            if isinstance(peer, EnginePeer):
                say(console, f"{name}: a step is {peer.how}")
        except (*EXPECTED_ERRORS, RuntimeError) as error:
            say(console, f"{name}: {error_words(error)}", "red")
            status = FAILED
            if name == ours:
                return status
    machine = report.machine()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()), highlight=False)
    limit_ms = 1e3 * read / copy
    say(console, f"weights {read / 1e6:.0f} MB, copy {copy / 1e12:.2f} TB/s: at least {limit_ms:.3f} ms between tokens")
    title = f"{options.model}, {dtype}, {counted(options.batch, 'sequence')} of {options.prompt}, "
    title += f"{options.new_tokens} new tokens"
    element = next(model.parameters()).element_size()
    limits = {name: limit_ms * (4 / element if name in FLOAT32 else 1) for name in measured}
    console.print(table(measured, limits, title, options.batch))
    if options.json:
        found = {name: asdict(one) for name, one in measured.items()}
        content = {"machine": machine, "command": command, "limits_ms": limits, "milliseconds": found}
        options.json.write(json.dumps(content, indent=1) + "\n")
    return status

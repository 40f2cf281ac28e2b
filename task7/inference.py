"""python -m task7.inference: a GPT-2 writes, its attention running through the kernels of tasks 4 and 6.

`main(reference=True)` is python -m task7.inference_ref: the same command line and loop with transformers' own
attention and cache. --help lists the options.
"""

import argparse
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from common import cli
from task7 import models
from task7.kernels import load_kernels
from task7.request import check_request
from task7.streaming import TextStream

EXPECTED_ERRORS = (*cli.EXPECTED_ERRORS, ConnectionError)
DTYPES = ("float32", "float16", "bfloat16")


def parse_arguments(argv, reference):
    parser = argparse.ArgumentParser(
        prog="python -m task7.inference" + "_ref" * reference,
        description="A GPT-2 continues a prompt. "
        + (
            "Attention: transformers' own. --backend chooses the device; --solution and --arch change nothing."
            if reference
            else "Attention: the CUDA kernels of tasks 4 and 6."
        ),
    )
    cli.add_build_arguments(parser)
    parser.add_argument(
        "--model",
        default=str(models.STORYTELLER),
        metavar="FOLDER_OR_HUB_NAME",
        help="default: the storyteller that ships with task 7; gpt2: OpenAI's, from the hub",
    )
    parser.add_argument("--prompt", default="Once upon a time", help="default: %(default)r; '' starts a new text")
    parser.add_argument("--max-new-tokens", type=int, default=100, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="default: 0, greedy; 0.8 with --top-k 40 writes a new story for every --seed",
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="sample from the K likeliest (default: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default: %(default)s")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="the model's; the kernels always compute in float32 (default: %(default)s)",
    )
    return parser.parse_args(argv)


def attach_reference(model, backend):
    """The reference: transformers' sdpa. Returns a function from max_seq_len to an empty DynamicCache."""
    import torch
    from transformers import DynamicCache

    if backend == "cuda" and not torch.cuda.is_available():
        raise ValueError("--backend is 'cuda', but PyTorch sees no GPU; allowed: auto, simulator")
    model.to("cpu" if backend == "simulator" or not torch.cuda.is_available() else "cuda")
    model.set_attn_implementation("sdpa")
    return lambda max_seq_len: DynamicCache(config=model.config)


def attach_kernels(model, kernels):
    """Ours. kernels: (task 4's operators, task 6's).

    Returns the KernelAttention and a function from max_seq_len to an empty KernelCache.
    """
    from task7.cache import KernelCache
    from task7.kernel_attention import KernelAttention

    attention = KernelAttention(*kernels)
    attention.attach(model)
    return attention, lambda max_seq_len: KernelCache(attention, model, max_seq_len)


def summary(generation, model, options, attention=None):
    """The table at the end. attention: the KernelAttention that ran, None for the reference."""
    import torch

    table = Table(show_header=False)
    table.add_row("new tokens", f"{len(generation.tokens)} (stopped by {generation.stopped_by})")
    table.add_row("TTFT, time to first token", f"{generation.ttft_ms:.1f} ms")
    if tbt := sorted(generation.tbt_ms):
        low, high = tbt[len(tbt) // 10], tbt[len(tbt) * 9 // 10]
        table.add_row(
            "TBT, time between tokens",
            f"median {statistics.median(tbt):.1f} ms; 80% lie between {low:.1f} and {high:.1f} ms",
        )
    table.add_row("tokens/s", f"{generation.tokens_per_s:.1f}")
    device = torch.cuda.get_device_name() if model.device.type == "cuda" else "CPU"
    if attention is None:
        table.add_row("backend", f"PyTorch on {device}, model in {options.dtype}")
        table.add_row("attention", "transformers: sdpa, DynamicCache (the reference)")
        return table
    where = "the simulator: CUDA C++ on the CPU" if attention.backend == "simulator" else f"CUDA on {device}"
    table.add_row("backend", f"{where}, model in {options.dtype}, attention in float32")
    calls = attention.calls
    table.add_row("kernels", "the reference solution's" if options.solution else "yours")
    table.add_row("prefill", f"task 4 flash_attention: {calls['flash_attention']} calls")
    table.add_row("decode", f"task 6 decode_attention: {calls['decode_attention']} calls")
    table.add_row("KV cache", f"task 6 update_cache: {calls['update_cache']} calls")
    return table


def explain_gap(console, gap):
    """What to do about an unfilled gap. gap: the NotImplementedError that the operator raised."""
    console.print(f"[red]{escape(str(gap))}[/]", highlight=False, soft_wrap=True)
    console.print(
        "Fill it in and run that task's own test, then come back; or add --solution to use the "
        "reference solution's kernels.",
        highlight=False,
        soft_wrap=True,
    )


def run(options, console, reference):
    """Loads everything, generates, prints. Raises EXPECTED_ERRORS and what the kernels raise."""
    check_request(1, options.max_new_tokens, options.temperature, options.top_k, float("inf"))
    name, local = models.find(options.model)

    from task7.generation import generate, warm_up  # imports torch

    if reference:
        building, doing = None, "loading the model ..."
    else:
        cli.say_backend(console, options.backend)
        pool = ThreadPoolExecutor(max_workers=1)  # the compilers work while this thread imports transformers
        building = pool.submit(load_kernels, options.solution, options.backend, options.arch)
        doing = "compiling tasks 4 and 6, loading the model ..."
    with cli.working(console, doing):
        tokenizer, model = models.load(name, local, options.dtype)
        prompt = models.prompt_tokens(tokenizer, options.prompt)
        check_request(
            len(prompt),
            options.max_new_tokens,
            options.temperature,
            options.top_k,
            model.config.max_position_embeddings,
        )
        if reference:
            attention, new_cache = None, attach_reference(model, options.backend)
        else:
            attention, new_cache = attach_kernels(model, building.result())
        warm_up(model, new_cache)
    if attention is not None:
        attention.reset_calls()

    def write(text):
        sys.stdout.write(text)
        sys.stdout.flush()

    console.print(f"\n[bold]{escape(options.prompt)}[/]", end="", highlight=False, soft_wrap=True)
    stream = TextStream(tokenizer, write)
    try:
        generation = generate(
            model,
            prompt,
            new_cache(len(prompt) + options.max_new_tokens),
            max_new_tokens=options.max_new_tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            seed=options.seed,
            stop_token=tokenizer.eos_token_id,
            on_token=stream.put,
        )
    finally:
        stream.close()
        write("\n\n")
    console.print(summary(generation, model, options, attention))


def main(argv=None, reference=False):
    """Returns the exit status: 0 done, 1 a gap or a kernel that failed, 2 a wrong argument or build."""
    options = parse_arguments(argv, reference)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a story may hold characters that the terminal's encoding lacks
    console = Console()
    try:
        run(options, console, reference)
    except NotImplementedError as gap:
        explain_gap(console, gap)
        return 1
    except EXPECTED_ERRORS as error:
        console.print(f"[red]{escape(str(error))}[/]", highlight=False, soft_wrap=True)
        return 2
    except RuntimeError as error:
        console.print(f"[red]generation stopped:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

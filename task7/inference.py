"""python -m task7.inference: a GPT-2 writes through the kernels of tasks 4, 6 and 7.

`main(reference=True)` is python -m task7.inference_ref: the same command line and loop with transformers' own
attention and cache. --help lists the options (options.py); --compare shows both side by side (compare.py).
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from common import cli, toolchain
from task7 import models
from task7.kernels import load_kernels
from task7.options import Options, parse
from task7.request import check_request
from task7.streaming import TextStream

WARM_UP_TOKENS = 3
EXPECTED_ERRORS = (*cli.EXPECTED_ERRORS, ConnectionError)


def engine_of(options: Options) -> str:
    """ "lean" or "transformers": what was asked for, else what suits the backend.

    In the simulator that is transformers: two tasks to compile in place of three, and no launch to save.
    """
    if options.engine is not None:
        return options.engine
    return "lean" if toolchain.choose_backend(options.backend).name == "cuda" else "transformers"


def load_writer(options: Options, console: Console, reference: bool = False):
    """Compiles kernels and loads the model: (tokenizer, prompts as lists of token ids, writer).

    Raises EXPECTED_ERRORS.
    """
    check_request(1, options.max_new_tokens, options.temperature, options.top_k, float("inf"), options.top_p)
    name, local = models.find(options.model)
    if reference:
        with cli.working(console, "loading the model ..."):
            return _prepared(options, name, local, None)
    cli.say_backend(console, options.backend)
    engine = engine_of(options)
    tasks = "tasks 4, 6 and 7" if engine == "lean" else "tasks 4 and 6"
    with cli.working(console, f"compiling {tasks}, loading the model ..."):
        import torch.utils.cpp_extension  # noqa: F401  before there are two threads: both would begin to import it

        with ThreadPoolExecutor(max_workers=1) as pool:  # the compilers work while this thread imports transformers
            building = pool.submit(_load_kernels, engine, options.variant, options.backend, options.arch)
            return _prepared(options, name, local, engine, building)


def _load_kernels(engine: str, *what):
    if engine == "lean":
        from task7.engine_kernels import load_engine_kernels

        return load_engine_kernels(*what)
    return load_kernels(*what)


def _prepared(options: Options, name: str, local: bool, engine: str | None, building=None):
    """load_writer's result. engine: None for the reference. building: the future of the kernels."""
    tokenizer, model = models.load(name, local, options.dtype)
    prompts = [models.prompt_tokens(tokenizer, prompt) for prompt in options.prompts]
    for prompt in prompts:
        check_request(
            len(prompt),
            options.max_new_tokens,
            options.temperature,
            options.top_k,
            model.config.max_position_embeddings,
            options.top_p,
        )
    from task7 import writers

    if engine is None:
        writer = writers.reference_writer(model, options.backend)
    elif engine == "lean":
        writer = writers.lean_writer(model, building.result(), options.dtype, prompts, options.max_new_tokens)
    else:
        writer = writers.attached_writer(model, building.result(), options.variant)
    writer.warm_up(prompts, min(WARM_UP_TOKENS, options.max_new_tokens))
    return tokenizer, prompts, writer


def write_texts(tokenizer, prompts, writer, options: Options, console: Console):
    """Generates, the first text as it comes and the others after it. Returns Generations."""
    pieces: list[list[str]] = [[] for _ in prompts]

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    streams = [TextStream(tokenizer, write), *(TextStream(tokenizer, later.append) for later in pieces[1:])]
    _show_prompt(console, options.prompts[0])
    try:
        result = writer.generate(
            prompts,
            stop_token=tokenizer.eos_token_id,
            on_token=lambda sequence, token: streams[sequence].put(token),
            **options.sampling,
        )
    finally:
        for number, stream in enumerate(streams):
            stream.close()
            if number > 0:
                _show_prompt(console, options.prompts[number])
                write("".join(pieces[number]))
            write("\n\n" if number == len(streams) - 1 else "\n")
    return result


def _show_prompt(console: Console, prompt: str) -> None:
    console.print(f"\n[bold]{escape(prompt)}[/]", end="", highlight=False, soft_wrap=True)


def summary(result, writer) -> Table:
    """The table at the end. result: Generations."""
    table = Table(show_header=False)
    table.add_row("new tokens", new_tokens(result))
    table.add_row("TTFT, time to first token", f"{result.ttft_ms:.1f} ms")
    if result.tbt_ms:
        table.add_row("TBT, time between tokens", tbt(result))
    table.add_row("tokens/s", f"{result.tokens_per_s:.1f}")
    for row in writer.rows():
        table.add_row(*row)
    return table


def new_tokens(result) -> str:
    """ "100 (stopped by max_new_tokens)", for every sequence."""
    each = zip(result.tokens, result.stopped_by, strict=True)
    words = Counter(f"{len(tokens)} (stopped by {stopped_by})" for tokens, stopped_by in each)
    return "; ".join(f"{times} x " * (times > 1) + one for one, times in words.items())


def tbt(result) -> str:
    """The times between tokens: median and spread. Needs two tokens or more."""
    ordered = sorted(result.tbt_ms)
    low, high = ordered[len(ordered) // 10], ordered[len(ordered) * 9 // 10]
    digits = 1 if ordered[0] >= 1 else 3
    return (
        f"median {statistics.median(ordered):.{digits}f} ms; 80% lie between {low:.{digits}f} and {high:.{digits}f} ms"
    )


def explain_gap(console, gap):
    """What to do about an unfilled gap. gap: the NotImplementedError that the operator raised."""
    console.print(f"[red]{escape(str(gap))}[/]", highlight=False, soft_wrap=True)
    without = " --engine transformers needs none of task 7's." if "task7/" in str(gap) else ""
    console.print(
        "Fill it in and run that task's own test, then come back; or add --solution to use the "
        f"reference solution's kernels.{without}",
        highlight=False,
        soft_wrap=True,
    )


def run(options: Options, console: Console, reference: bool) -> None:
    """Loads everything, generates, prints. Raises EXPECTED_ERRORS and what the kernels raise."""
    if options.compare:
        from task7.compare import compare

        compare(options, console)
        return
    tokenizer, prompts, writer = load_writer(options, console, reference)
    result = write_texts(tokenizer, prompts, writer, options, console)
    console.print(summary(result, writer))


def main(argv=None, reference=False):
    """Returns the exit status: 0 done, 1 a gap or a kernel that failed, 2 a wrong argument or build."""
    options = parse(argv, reference)
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

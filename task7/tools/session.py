"""A generation session: loads kernels and model, reads prompts, prints tokens as they come.

tokenizer, prompts, writer = load_writer(options, console)
result = write_texts(tokenizer, prompts, writer, options, console)

options: see task7.tools.options.parse.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.markup import escape

from common.cli.options import say_backend
from common.compiling import toolchain
from common.compiling.manifest import has_solutions
from common.compiling.places import is_filled
from common.compiling.variant import Variant
from common.console.terminal import say, working
from common.kernels.gpt2.request import check_request
from task7.given.operators import load_engine_kernels, load_kernels
from task7.tools import models, writers
from task7.tools.streaming import TextStream

WARM_UP_TOKENS = 3


def engine_of(options: argparse.Namespace) -> str:
    """ "lean" or "transformers": the requested engine, or the backend's default.

    In the simulator the default is transformers (two tasks to compile instead of three, no launch overhead to save),
    unless the gaps of the student's task 7 are filled: its kernels run only in the lean engine.
    """
    if options.engine is not None:
        return options.engine
    lean = toolchain.choose_backend(options.backend).name == "cuda"
    return "lean" if lean or (options.variant == Variant.STUDENT and is_filled("task7")) else "transformers"


def load_writer(options: argparse.Namespace, console: Console, reference: bool = False):
    """Compiles kernels and loads the model: (tokenizer, prompts as lists of token ids, writer).

    Raises what task7.tools.inference.EXPECTED_ERRORS names.
    """

    def check(prompt_tokens: int, context: float) -> None:
        sampling = options.temperature, options.top_k
        check_request(prompt_tokens, options.max_new_tokens, *sampling, context, options.top_p)

    check(1, float("inf"))
    name, local = models.find(options.model)
    what = "loading the model ..."
    if not reference:
        say_backend(console, options.backend)
        engine = engine_of(options)
        what = f"compiling {'tasks 4, 6 and 7' if engine == 'lean' else 'tasks 4 and 6'}, {what}"
    with working(console, what), ThreadPoolExecutor(max_workers=1) as pool:
        if not reference:  # compile while this thread imports transformers
            import torch.utils.cpp_extension  # noqa: F401  before there are two threads: both would begin to import it

            load_all = load_engine_kernels if engine == "lean" else load_kernels
            building = pool.submit(load_all, options.variant, options.backend, options.arch)
        tokenizer, model = models.load(name, local, options.dtype)
        prompts = [models.prompt_tokens(tokenizer, prompt) for prompt in options.prompts]
        for prompt in prompts:
            check(len(prompt), model.config.max_position_embeddings)
        if reference:
            writer = writers.reference_writer(model, options.backend)
        elif engine == "lean":
            writer = writers.lean_writer(model, building.result(), options.dtype, prompts, options.max_new_tokens)
        else:
            writer = writers.attached_writer(model, building.result(), options.variant)
        writer.warm_up(prompts, min(WARM_UP_TOKENS, options.max_new_tokens))
    return tokenizer, prompts, writer


def write_texts(tokenizer, prompts, writer, options: argparse.Namespace, console: Console):
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


def explain_gap(console, gap):
    """Prints what to do about an unfilled gap. gap: the NotImplementedError that the operator raised."""
    say(console, gap, "red")
    without = " --engine transformers needs none of task 7's." if "task7/" in str(gap) else ""
    solution = "; or add --solution to use the reference solution's kernels" if has_solutions() else ""
    say(console, f"Fill it in and run that task's own test, then come back{solution}.{without}")

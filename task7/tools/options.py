"""The command lines of python -m task7.inference and task7.inference_ref."""

from __future__ import annotations

import argparse

from common.cli.options import add_build_arguments, command_of
from task7.tools import models

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
ENGINES = ("lean", "transformers")
PROMPT = "Once upon a time"
SAMPLING = ("max_new_tokens", "temperature", "top_k", "top_p", "seed")
STORY_TOKENS, COMPARED_TOKENS = 200, 100


def parse(argv, reference: bool = False) -> argparse.Namespace:
    """The command line of task7.inference, or with `reference` of task7.inference_ref.

    In addition to the options below: command, what was typed, and sampling, the arguments of any engine's generate.
    dtype is "float32", "float16" or "bfloat16".
    """
    program = "task7.inference" + "_ref" * reference
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description="Continue prompts with a GPT-2.  "
        + (
            "Attention: transformers' own. --backend chooses the device; the kernels' options change nothing."
            if reference
            else "It runs on your kernels from tasks 4, 6, and 7."
        ),
    )
    add_build_arguments(parser)
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        help="lean: the weights without transformers' code, on tasks 4, 6 and 7, with CUDA graphs (default on a GPU); "
        "transformers: its modules around the attention of tasks 4 and 6 (default in the simulator)",
    )
    parser.add_argument(
        "--model",
        default=str(models.STORYTELLER),
        metavar="FOLDER_OR_HUB_NAME",
        help="default: the storyteller that ships with task 7; gpt2: OpenAI's, from the hub",
    )
    parser.add_argument(
        "--prompt",
        action="append",
        dest="prompts",
        metavar="TEXT",
        help=f"default: {PROMPT!r}; '' starts a new text; several --prompt make a batch",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        metavar="N",
        help=f"default: {STORY_TOKENS}, enough for most stories of the storyteller"
        + ("" if reference else f"; with --compare {COMPARED_TOKENS}"),
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="default: 0, greedy; 0.8 with --top-k 40 writes a new story for every --seed",
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="sample from the K most likely tokens (default: all)")
    parser.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="sample from the most likely tokens whose probabilities reach P (default: all)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default: %(default)s")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="fp32",
        help="of weights and cache; 16 bits need --variant tuned, or else --engine transformers, whose attention then "
        "converts to fp32 and back (default: %(default)s)",
    )
    if reference:
        parser.set_defaults(compare=False, report=False)
    else:
        parser.add_argument(
            "--compare",
            action="store_true",
            help="show the course and the reference side by side: text, perplexity, times",
        )
        parser.add_argument("--report", action="store_true", help="with --compare: also write it to Results.md")
        parser.add_argument(
            "--held-out",
            type=int,
            default=4,
            metavar="N",
            help="with --compare: perplexity over N sequences of 512 tokens (default: %(default)s)",
        )
    options = parser.parse_args(argv)
    if options.report and not options.compare:
        parser.error("--report writes what --compare measures: give both")
    if options.max_new_tokens is None:
        options.max_new_tokens = COMPARED_TOKENS if options.compare else STORY_TOKENS
    options.prompts = options.prompts or [PROMPT]
    options.dtype = DTYPES[options.dtype]
    options.command = command_of(program, argv)
    options.sampling = {name: getattr(options, name) for name in SAMPLING}
    return options

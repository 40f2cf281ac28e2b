"""The command lines of python -m task7.inference and task7.inference_ref: the parser, and the options as an object."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from common.cli.options import add_build_arguments, command_of
from common.compiling.variant import Variant
from task7.tools import models

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
ENGINES = ("lean", "transformers")
PROMPT = "Once upon a time"
STORY_TOKENS, COMPARED_TOKENS = 200, 100


@dataclass(frozen=True)
class Options:
    """One command line.

    Attributes:
        variant, backend, arch: which kernels, see task7.given.operators.load_kernels.
        engine: "lean", "transformers", or None for the one that suits the backend.
        model: a folder or a name on the hub.
        prompts: one or more texts.
        max_new_tokens, temperature, top_k, top_p, seed: see task7.tools.generation.generate.
        dtype: of the model, "float32", "float16" or "bfloat16".
        compare, report: whether to compare with the reference, and to write that into Results.md.
        held_out: sequences of held-out text for the perplexity of `compare`.
        command: what was typed.
    """

    variant: Variant
    backend: str
    arch: str | None
    engine: str | None
    model: str
    prompts: list[str]
    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int
    dtype: str
    compare: bool = False
    report: bool = False
    held_out: int = 4
    command: str = "python -m task7.inference"

    @property
    def sampling(self) -> dict:
        """Arguments of any engine's generate."""
        return {name: getattr(self, name) for name in ("max_new_tokens", "temperature", "top_k", "top_p", "seed")}


def parse(argv, reference: bool = False) -> Options:
    """The command line of task7.inference, or with `reference` of task7.inference_ref."""
    parser = argparse.ArgumentParser(
        prog="python -m task7.inference" + "_ref" * reference,
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
    if not reference:
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
    options = vars(parser.parse_args(argv))
    options.pop("variant_flag", None)
    if options.get("report") and not options["compare"]:
        parser.error("--report writes what --compare measures: give both")
    if options["max_new_tokens"] is None:
        options["max_new_tokens"] = COMPARED_TOKENS if options.get("compare") else STORY_TOKENS
    program = "task7.inference" + "_ref" * reference
    given = {"prompts": options.pop("prompts") or [PROMPT], "command": command_of(program, argv)}
    return Options(**given, **options | {"dtype": DTYPES[options["dtype"]]})

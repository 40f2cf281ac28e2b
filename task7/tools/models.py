"""Finds and loads a GPT-2: from a folder, or by name from the Hugging Face hub."""

import re
import threading
from pathlib import Path

STORYTELLER = Path(__file__).parents[1] / "storyteller"
HUB_SECONDS = 5.0  # after that the hub counts as unreachable
CHOICES = (
    "Choices: leave --model out for the storyteller, which needs no download; or --model FOLDER for a GPT-2 "
    "that `save_pretrained` wrote"
)


def find(name):
    """Says where the model `name` is, within seconds and without downloading it.

    Returns (name or folder for `from_pretrained`, whether all files are on this machine).
    Raises ValueError for an unknown folder or model, ConnectionError when the hub is needed and out of reach.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ValueError(
                f"--model is {name!r}: that folder has no config.json; allowed: a folder that "
                "`save_pretrained` wrote, or a name on the Hugging Face hub"
            )
        return str(folder), True
    if folder.exists() or not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", name):
        raise ValueError(
            f"--model is {name!r}: no such folder; allowed: a folder with a model in it, or a name on the "
            "Hugging Face hub such as gpt2"
        )
    if _is_cached(name):
        return name, True
    _ask_hub(name)
    return name, False


def load(name, local, dtype="float32"):
    """Loads a tokenizer and a causal language model for inference, on the CPU.

    name, local: what `find` returned. dtype: "float32", "float16" or "bfloat16". Returns (tokenizer, model).
    Raises ValueError if the files cannot be read, or for a model that the course's kernels do not support.
    """
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from common.kernels.gpt2.supported_models import check_config

    transformers.logging.set_verbosity_error()
    if local:
        transformers.logging.disable_progress_bar()
    try:
        check_config(AutoConfig.from_pretrained(name, local_files_only=local))
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=local)
        model = AutoModelForCausalLM.from_pretrained(name, local_files_only=local, dtype=getattr(torch, dtype))
    except (OSError, ValueError) as error:
        raise ValueError(f"--model is {name!r}: {error}") from error
    return tokenizer, model.eval()


def prompt_tokens(tokenizer, prompt):
    """The prompt's token ids; an empty prompt starts from the end-of-text token."""
    return tokenizer(prompt).input_ids or [tokenizer.eos_token_id]


def _is_cached(name):
    from huggingface_hub import try_to_load_from_cache

    files = ("config.json", "model.safetensors", "tokenizer.json")
    return all(isinstance(try_to_load_from_cache(name, file), str) for file in files)


def _ask_hub(name):
    """Returns if the hub has the model, raises as `find` does.

    In a thread, because looking up a name has no timeout of its own.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    answer = []

    def ask():
        try:
            HfApi().model_info(name, timeout=HUB_SECONDS - 1)
            answer.append(None)
        except Exception as error:
            answer.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    error = answer[0] if answer else TimeoutError(f"no answer within {HUB_SECONDS:.0f} s")
    if isinstance(error, RepositoryNotFoundError):
        raise ValueError(
            f"--model is {name!r}: neither a folder here nor a public model on the Hugging Face hub. {CHOICES}"
        )
    if error is not None:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConnectionError(
            f"--model is {name!r}: not on this machine, and the Hugging Face hub cannot be reached "
            f"({reason}). {CHOICES}"
        )

"""Small GPT-2 models, and the text that transformers' own modules generate with them."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel


def unruly(initializer_range: float = 0.4, **sizes: int) -> GPT2LMHeadModel:
    """A small GPT-2 with weights large enough that its greedy texts do not repeat.

    Larger models need smaller weights: at 0.4 a width of 768 makes float32 in transformers' modules err by 1%.
    """
    torch.manual_seed(1)
    config = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 97, "n_positions": 64} | sizes
    return GPT2LMHeadModel(GPT2Config(initializer_range=initializer_range, **config)).eval()


def written_by(model: PreTrainedModel, prompt: list[int], new_tokens: int) -> list[int]:
    """The greedy continuation of a prompt."""
    made = model.generate(torch.tensor([prompt]), max_new_tokens=new_tokens, do_sample=False, pad_token_id=0)
    return made[0, len(prompt) :].tolist()

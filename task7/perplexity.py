"""Perplexity on the held-out stories: exp of the mean negative log-likelihood of each next token."""

import torch

from task7.models import STORYTELLER

END_OF_TEXT = 0


def held_out_sequences(tokenizer, count=16, length=512):
    """The first count x length tokens of held_out.txt, every story followed by end-of-text.

    Returns (inputs, targets), int64 [count, length]; targets are the same text one token later.
    """
    stories = (STORYTELLER / "held_out.txt").read_text(encoding="utf-8").split("\n<|endoftext|>\n")
    wanted = count * length + 1
    tokens = []
    for story in stories:
        tokens += [*tokenizer(story).input_ids, END_OF_TEXT]
        if len(tokens) >= wanted:
            text = torch.tensor(tokens[:wanted])
            return text[:-1].view(count, length), text[1:].view(count, length)
    raise ValueError(f"count x length is {count} x {length}; allowed: at most {len(tokens) - 1} tokens")


@torch.no_grad()
def perplexity(model, inputs, targets, on_sequence=None):
    """Perplexity of the model, one prefill per sequence and no KV cache: a float, NaN if a logit is NaN.

    inputs, targets: int64 [count, length]. on_sequence: called after each sequence with the number done.
    """
    total = 0.0
    for i in range(len(inputs)):
        logits = model(inputs[i : i + 1].to(model.device), use_cache=False).logits[0].float()
        total += torch.nn.functional.cross_entropy(logits, targets[i].to(model.device), reduction="sum").item()
        if on_sequence is not None:
            on_sequence(i + 1)
    return torch.tensor(total / targets.numel()).exp().item()

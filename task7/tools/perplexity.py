"""Perplexity on the held-out stories: exp of the mean negative log-likelihood of each next token."""

import torch

from task7.tools.models import STORYTELLER


def held_out_sequences(tokenizer, count=16, length=512):
    """The first count x length tokens of held_out.txt, every story followed by the tokenizer's end-of-text.

    Returns (inputs, targets), int64 [count, length]; targets are the same text one token later.
    """
    stories = (STORYTELLER / "held_out.txt").read_text(encoding="utf-8").split("\n<|endoftext|>\n")
    wanted = count * length + 1
    tokens = []
    for story in stories:
        tokens += [*tokenizer(story).input_ids, tokenizer.eos_token_id]
        if len(tokens) >= wanted:
            text = torch.tensor(tokens[:wanted])
            return text[:-1].view(count, length), text[1:].view(count, length)
    raise ValueError(f"count x length is {count} x {length}; allowed: at most {len(tokens) - 1} tokens")


@torch.no_grad()
def perplexity(logits, inputs, targets, on_sequence=None):
    """Perplexity, one prefill per sequence and no KV cache: a float, NaN if a logit is NaN.

    logits: function from tokens, int64 [1, length], to the logits of each next one, [1, length, vocab].
    inputs, targets: int64 [count, length]. on_sequence: called after each sequence with the number done.
    """
    total = 0.0
    for i in range(len(inputs)):
        found = logits(inputs[i : i + 1])[0].float()
        total += torch.nn.functional.cross_entropy(found, targets[i].to(found.device), reduction="sum").item()
        if on_sequence is not None:
            on_sequence(i + 1)
    return torch.tensor(total / targets.numel()).exp().item()

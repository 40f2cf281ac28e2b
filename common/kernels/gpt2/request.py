"""Checks a generation request."""


def check_request(prompt_tokens, max_new_tokens, temperature, top_k, context, top_p=None):
    """Raises a ValueError with the argument's name, its value and what is allowed.

    prompt_tokens: number of tokens in the prompt. context: the model's context length in tokens.
    """
    if not temperature >= 0 or temperature == float("inf"):
        raise ValueError(f"temperature is {temperature}; allowed: 0 (greedy) or more")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k is {top_k}; allowed: 1 or more (leave it out for no limit)")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}; allowed: more than 0, at most 1 (leave it out for no limit)")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; allowed: 1 or more")
    if prompt_tokens < 1:
        raise ValueError("the prompt has 0 tokens; allowed: 1 or more (start from the end-of-text token)")
    if prompt_tokens + max_new_tokens > context:
        room = context - prompt_tokens
        allowed = (
            f"max_new_tokens of at most {room} with this prompt"
            if room > 0
            else f"a prompt of at most {context - 1} tokens"
        )
        raise ValueError(
            f"the prompt has {prompt_tokens} tokens and max_new_tokens is {max_new_tokens}, together "
            f"{prompt_tokens + max_new_tokens}; the model's context is {context} tokens; allowed: {allowed}"
        )

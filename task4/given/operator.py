"""FlashAttention in Python: one call, one kernel."""


def flash_attention(ops, query, key, value, causal=False, scale=None, lower_right=False):
    """softmax(scale * query @ key^T) @ value, without storing the scores.

    The algorithm is FlashAttention-2's forward pass (Dao 2023, arXiv:2307.08691): memory grows with
    S_q + S_k, not with S_q * S_k. Scores, softmax and sums are float32.

    Args:
        ops: what `common.compiling.load.load("task4")` returns.
        query: [batch, heads, S_q, head_dim], float32, contiguous, on `ops.device`; head_dim is 1 .. 128.
        key, value: [batch, heads, S_k, head_dim], likewise.
        causal: query i sees the keys j <= i + diagonal.
        scale: what the scores are multiplied by; 1 / sqrt(head_dim) when None.
        lower_right: with causal, which diagonal: 0 aligns the mask to the top left corner of S (False; PyTorch's
            `is_causal=True`), S_k - S_q to its bottom right corner (True; FlashAttention and
            `torch.nn.attention.bias.causal_lower_right`). No difference where S_q == S_k.

    Returns:
        [batch, heads, S_q, head_dim], float32, newly allocated. A query that sees no key gets zeros.

    Raises:
        ValueError: a dtype, shape or layout that the kernel does not support. The message names the argument,
            its value and what is allowed.
        NotImplementedError: the kernel still has gaps (file and line are named).
    """
    return ops.flash_attention(query, key, value, causal, scale, lower_right)

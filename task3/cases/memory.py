"""Limits on flash_attention: `complaint` on its memory use, `causal_complaint` also on computing masked tiles."""

from torch import Tensor

from common.measure.allocations import AllocationRecorder


def complaint(made: AllocationRecorder, query: Tensor, key: Tensor, B_r: int, B_c: int) -> str:
    """What is wrong with flash_attention's allocations; "" if nothing.

    A single tensor may be up to twice as large as the largest of query, key and value. All tensors alive at the same
    time may total twice the size of these and the output, plus 16 tiles of scores. Those computed from the queries may
    not grow with the number of keys, and none of their values may be read into Python. Each tile of queries goes over
    the keys only once.

    Args:
        made: recorded during one call only; `inputs` are query, key and value, `source` is query, `partner` key.
        query: [batch, heads, S_q, head_dim]; key: [batch, heads, S_k, head_dim].
        B_r, B_c: the tile sizes of the call.
    """
    seq_q, seq_k = query.size(-2), key.size(-2)
    heads, size = query.size(0) * query.size(1), query.element_size()
    for_one = 2 * max(query.numel(), key.numel()) * size
    for_all = 2 * (2 * query.numel() + 2 * key.numel()) * size + 16 * heads * B_r * B_c * size
    if fused := sorted(name for name in made.operators if "scaled_dot_product" in name):
        return f"flash_attention calls PyTorch's own attention ({fused[0]}); write the algorithm itself."
    largest = made.largest
    if largest and largest.bytes > for_one:
        what = {
            (True, True): f"the scores of all {seq_q} queries with all {seq_k} keys",
            (False, True): f"the scores of a tile of queries with all {seq_k} keys",
            (True, False): f"the scores of all {seq_q} queries with a tile of keys",
        }.get((seq_q in largest.shape, seq_k in largest.shape), "too large for a tile")
        return (
            f"A tensor of shape {list(largest.shape)} was made in line {largest.file_line} ({largest.operator}, "
            f"{largest.bytes // 1024} KiB): {what}. Scores are needed for a tile of {B_r} queries and {B_c} keys at a "
            f"time; no tensor here needs more than {for_one // 1024} KiB."
        )
    if made.peak_bytes > for_all:
        return (
            f"Beyond its inputs, flash_attention held up to {made.peak_bytes // 1024} KiB at once; with S_q = {seq_q} "
            f"and S_k = {seq_k} at most {for_all // 1024} KiB are allowed, and all scores together would take "
            f"{heads * seq_q * seq_k * size // 1024} KiB. Are tiles kept that are no longer needed?"
        )
    for_rows = (4 * query.numel() + 16 * heads * B_r * max(B_c, query.size(-1))) * size
    if made.peak_from_source > for_rows:
        return (
            f"What is computed from the queries took up to {made.peak_from_source // 1024} KiB at once; "
            f"{for_rows // 1024} KiB are enough for any number of keys. A query meets {B_c} keys at a time, and all "
            "that is kept of them is m, l and O."
        )
    if made.read:
        return (
            f"A number that is computed from the queries is read into Python in line {made.read}, where it takes "
            "memory that is no tensor's. Leave it in a tensor."
        )
    once = key.numel() * -(-seq_q // B_r)
    if made.met > 1.5 * once:
        return (
            f"A tile of {B_r} queries meets every key {made.met / once:.1f} times on average. Once is enough: compute "
            "the scores of a tile once, and carry m, l and O from tile to tile."
        )
    return ""


def causal_complaint(made: AllocationRecorder, query: Tensor, key: Tensor, B_r: int, B_c: int) -> str:
    """The same; it also reports tiles above the diagonal that were computed."""
    seq_q, seq_k = query.size(-2), key.size(-2)
    enough = sum(min(seq_k, -(-min(start + B_r, seq_q) // B_c) * B_c) for start in range(0, seq_q, B_r))
    met = made.met * seq_k // key.numel()
    other = complaint(made, query, key, B_r, B_c)
    if other or met <= 1.5 * enough:
        return other
    return (
        f"The tiles of {B_r} queries meet {met} keys together; {enough} are enough: end the loop over the keys where "
        "the last query of the tile sees no further key."
    )

"""Attention of a sequence that is on several GPUs, on torch.distributed; see README.md.

attention   sequence_parallel_attention: the door
shards      who holds which tokens: shard, unshard, positions
ring        the keys travel from rank to rank
ulysses     the heads are dealt out instead
merge       partial results by their logsumexp
transfers   what is sent, and the error when a rank doesn't answer
agreement   refuses, on every rank, what the ranks do not agree on
"""

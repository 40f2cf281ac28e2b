"""Attention over a sequence split across several GPUs, on torch.distributed; see README.md.

attention   sequence_parallel_attention: the API
shards      who holds which tokens: shard, unshard, positions
ring        the keys are passed from rank to rank
ulysses     the heads are distributed instead
transfers   communication, and the error when a rank doesn't respond
copies      transfers within one host through the copy engines
agreement   refuses, on every rank, arguments that the ranks do not agree on
paper       estimates of bytes and time
"""

"""Attention over several GPUs compared with PyTorch's context_parallel and one GPU.

    torchrun --nproc-per-node 2 -m common.benchmark distributed

Every rank runs this; rank 0 prints. Operations are counted for the whole problem: 4 heads tokens^2 head_dim
forward and 3.5 times that with the backward pass, half of it under a causal mask.

command     the command line
records     Setting, Record; their output
versions    ring, Ulysses, context_parallel, one GPU
verify      compares out and gradients with float64
timing      times all versions in turn
longest     the longest forward pass that fits
"""

"""Attention over several GPUs compared with PyTorch's context_parallel and one GPU.

    torchrun --nproc-per-node 2 -m common.benchmark distributed

Every rank runs this; rank 0 prints. Operations are counted as those of the whole: 4 heads tokens^2 head_dim
forward and 3.5 times that with the backward pass, half of it under a causal mask.

command     the command line
records     Setting, Record; what is printed and written of them
versions    who computes it: ring, Ulysses, context_parallel, one GPU
verify      out and gradients against float64
timing      all versions in turn
longest     the longest forward pass that fits
"""

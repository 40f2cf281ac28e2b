"""The fast kernels. One room per subject, with its .cu, binding, a door in Python, and a README; see README.md.

gemm, softmax    task 2's products and softmax, fast
flash            dense attention, forward and backward
sparse           strided, windowed and block-sparse attention
decode           attention over a KV cache, contiguous and in pages; the caches
distributed      attention of a sequence that lies on several GPUs
gpt2             what stands between GPT-2's attention layers, and the engine
"""

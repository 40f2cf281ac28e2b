"""The fast kernels. attention.py is the API of all attention. One room per subject: .cu files, binding and README.

gemm, softmax    task 2's products and softmax, fast
flash            attention, forward and backward: dense, packed, listed blocks; softcap, sinks, windows, dropout
sparse           strided, windowed and block-sparse attention
decode           attention over a KV cache, contiguous and in pages; the caches
distributed      attention of a sequence that is on several GPUs
gpt2             what is between GPT-2's attention layers, and the engine
"""

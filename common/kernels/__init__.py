"""The fast kernels. attention.py is the API of all attention. One room per subject: .cu files, binding and README.

gemm, softmax    task 2's products and softmax, fast
flash            dense attention, forward and backward
flash_options    attention with softcap, sinks, windows, dropout; packed sequences
sparse           strided, windowed and block-sparse attention
decode           attention over a KV cache, contiguous and in pages; the caches
distributed      attention of a sequence that lies on several GPUs
gpt2             what stands between GPT-2's attention layers, and the engine
"""

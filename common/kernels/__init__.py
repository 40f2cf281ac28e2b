"""The fast kernels. attention.py is the API of all attention. One folder per subject: .cu files, binding and README.

gemm, softmax    fast versions of task 2's GEMM and softmax
flash            attention, forward and backward: dense, packed, block-sparse; softcap, sinks, windows, dropout
sparse           strided, windowed and block-sparse attention
decode           attention over a KV cache, contiguous or paged; the caches
distributed      attention over a sequence split across several GPUs
gpt2             the layers of GPT-2 around attention, and the inference engine
"""

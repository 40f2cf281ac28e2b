"""The prefill: prompts go into the caches, and their first new tokens come out, entirely on the device.

    PromptBuffer     prompts and a text's initial state, uploaded to the device in one copy
    Prefill          the pass itself, for prompts of up to `seq_len` tokens: it can be captured as a CUDA graph
    Captured         graphs that run one after the other: a shared memory pool, a limit on how many are kept

A prefill reads the prompts, and where they end, from DecodeState.inputs, and nothing from the host. Prompts are padded
on the right: under the causal mask only padding attends to padding, the rows of the prompts' last tokens are selected
by their positions, and a step does not read cache slots past a sequence's length; it writes each before reading it.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from common.kernels.cuda_graph import captured
from common.kernels.gpt2.decode_step import DecodeState
from common.kernels.gpt2.engine_kernels import EngineKernels
from common.kernels.gpt2.forward import PrefillAttention, embed, up_to_last_attention
from common.kernels.gpt2.weights import Weights


class PromptBuffer:
    """The host's copy of state.inputs, in pinned memory where that matters.

        buffer.put(prompts, ...); buffer.upload(seq_len, sampled); buffer.uploaded()

    upload, or embed in its place, reads what was put before it runs, so it can be captured. Pinned memory may be slow
    to write, so numbers are written many bytes at a time.
    """

    def __init__(self, state: DecodeState) -> None:
        self.state = state
        on_gpu = state.inputs.is_cuda
        self.host = torch.zeros(state.inputs.shape, dtype=torch.int32, device="cpu", pin_memory=on_gpu)
        self._bytes = memoryview(self.host.numpy()).cast("B")
        self._copied = torch.cuda.Event() if on_gpu else None

    def put(
        self,
        prompts: Sequence[Sequence[int]],
        seq_len: int,
        stop_token: int | None,
        draws: tuple[Tensor, float, int, float] | None = None,
    ) -> None:
        """Sets what the next text starts with. seq_len: at least the longest prompt's.

        draws: for a text with sampled tokens: uniforms [steps, batch], temperature, top_k, top_p (sampling.py).
        """
        if self._copied is not None:
            self._copied.synchronize()  # waits until nothing reads the memory that is now written
        if draws is not None:
            uniforms, temperature, top_k, top_p = draws
            settings = struct.pack("dxxxxxxxxdxxxxxxxxqxxxxxxxx", temperature, top_p, top_k)
            self._write(0, settings + uniforms.numpy().tobytes())
        batch = len(self.state.positions)
        ends = [len(prompt) for prompt in prompts]
        values = [end - 1 for end in ends] + ends + [0] * (2 * batch)  # positions, lengths, steps, finished
        values.append(-1 if stop_token is None else stop_token)
        for prompt, end in zip(prompts, ends, strict=True):
            values += prompt
            values += [0] * (seq_len - end)
        self._write(4 * self.state.drawn, struct.pack(f"{len(values)}i", *values))

    def _write(self, at: int, data: bytes) -> None:
        self._bytes[at : at + len(data)] = data

    def upload(self, seq_len: int, sampled: bool) -> None:
        """Starts a new text on the device, after everything launched so far."""
        state, prompts = self._parts(seq_len, sampled)
        both = slice(state.start, prompts.stop)
        self.state.inputs[both].copy_(self.host[both], non_blocking=True)

    def embed(self, gpt2, weights: Weights, seq_len: int, sampled: bool) -> Tensor:
        """Does the same in one kernel that reads the host's memory; returns the embeddings [batch * seq_len, width]."""
        state, prompts = self._parts(seq_len, sampled)
        tokens = self.host[prompts].view(-1, seq_len)
        return gpt2.begin_text(self.host[state], tokens, self.state.inputs[state], weights.wte, weights.wpe)

    def _parts(self, seq_len: int, sampled: bool) -> tuple[slice, slice]:
        """Of the inputs: what a text starts with, and the prompts."""
        batch, drawn = len(self.state.positions), self.state.drawn
        end = drawn + 4 * batch + 1
        return slice(0 if sampled else drawn, end), slice(end, end + batch * seq_len)

    def uploaded(self) -> None:
        """Called after the launch of an upload: the next put() waits for it."""
        if self._copied is not None:
            self._copied.record()


class Prefill:
    """Runs the prompts in state.inputs, of up to seq_len tokens, through the model.

    caches: per layer (k_cache, v_cache) [batch, heads, max_seq_len, head_dim]; slots 0 .. seq_len - 1 are filled.
    step: TorchStep, FusedStep or PersistentStep: its `state` says where the prompts end, and it takes the first new
        tokens. buffer: of the state; its upload runs first. sampled: whether tokens are sampled.
    """

    def __init__(
        self,
        weights: Weights,
        kernels: EngineKernels,
        caches,
        step,
        buffer: PromptBuffer,
        seq_len: int,
        sampled: bool = False,
    ) -> None:
        self.weights, self.kernels, self.step, self.seq_len, self.sampled = weights, kernels, step, seq_len, sampled
        self.buffer = buffer
        batch = len(step.state.positions)
        self.tokens = step.state.prompts(seq_len)
        self.attend = PrefillAttention(weights, kernels, batch, caches)

    def run(self) -> None:
        """The whole pass; never synchronizes with the device, so it can be captured."""
        weights, gpt2 = self.weights, self.kernels.gpt2
        if self.kernels.variant == "tuned":
            x = self.buffer.embed(gpt2, weights, self.seq_len, self.sampled)
        else:
            self.buffer.upload(self.seq_len, self.sampled)
            positions = torch.arange(self.seq_len, device=self.tokens.device).expand(self.tokens.shape)
            x = embed(weights, self.tokens.flatten(), positions.flatten())
        x, heads = up_to_last_attention(weights, gpt2, x, self.attend)
        self.step.finish(x, heads, self.sampled)


class Captured:
    """Calls as CUDA graphs by name, captured on first use.

    All graphs share a memory pool, so they must run one after the other, on one stream, and keep nothing in tensors
    that they allocate. most: how many are kept; a further one evicts the least recently used.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._graphs: OrderedDict[Hashable, Callable[[], None]] = OrderedDict()
        self._pool = None

    def get(self, name: Hashable, make: Callable[[], Callable[[], None]]) -> Callable[[], None]:
        """Returns what replays the graph `name`. make(): called if there is no such graph; its result runs once."""
        if name not in self._graphs:
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            while len(self._graphs) >= self.most:
                self._graphs.popitem(last=False)
            self._graphs[name] = captured(make(), self._pool)
        self._graphs.move_to_end(name)
        return self._graphs[name]

    def __len__(self) -> int:
        return len(self._graphs)

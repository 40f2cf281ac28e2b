"""Decode steps as one persistent kernel (persistent_step.cu): up to 4 sequences, Hopper GPUs.

    packed = PackedWeights.of(weights)          once per model
    plan = Plan.of(weights, kernels, batch, max_seq_len)      None: no such kernel for these
    step = PersistentStep(weights, kernels, packed, plan, cache, state)
    step.advance(tokens)                        the prompt's first new tokens
    step.start(99); step.tokens(1) ... step.tokens(99)

The kernel keeps running while the host reads the tokens, one by one, from mapped host memory. A launch has launch_steps
steps, so that other work on the GPU gets its turn; the next one is queued while the last one runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from common.kernels.gpt2.decode_step import DecodeState, FusedStep, first_tokens
from common.kernels.gpt2.engine_kernels import EngineKernels
from common.kernels.gpt2.weights import Weights

TILE_ROWS, CHUNK_ROW_BYTES, SLICES = 8, 64, 8  # step_plan.h
CHUNK_BYTES = TILE_ROWS * CHUNK_ROW_BYTES
NOT_YET, NO_TOKEN = -1, -2
LAST_FLAG = 2**32 - 1
LAUNCH_MS = 9.0  # maximum duration of a launch; steps of a longer text take longer than the one that is timed


@dataclass(frozen=True)
class Plan:
    """The result of plan_steps. ctas: of the kernel; weight_bytes, vectors: of PackedWeights; workspace: in 64-bit
    words. sampled: whether tokens are sampled.
    """

    ctas: int
    weight_bytes: int
    vectors: int
    workspace: int
    sampled: bool = False

    @classmethod
    def of(
        cls,
        weights: Weights,
        kernels: EngineKernels,
        batch: int,
        max_seq_len: int,
        sampled: bool = False,
        ctas: int = 0,
    ) -> Plan | None:
        """None if the kernel does not support this model or batch on this GPU. ctas: at most (0: as suits the GPU)."""
        if kernels.variant != "tuned":
            return None
        hidden = weights.layers[0].fc1.weight.size(0)
        sizes = (len(weights.layers), weights.heads, hidden, batch, max_seq_len)
        found = cls(*kernels.gpt2.plan_steps(weights.wte, *sizes, sampled, max_ctas=ctas), sampled)
        return found if found.ctas else None


@dataclass(frozen=True)
class PackedWeights:
    """weights: uint8 [chunks, CHUNK_BYTES], vectors: float32 [vectors], in the order of step_plan.h."""

    weights: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, weights: Weights) -> PackedWeights:
        matrices, vectors = [], []
        for layer in weights.layers:
            matrices.append(packed(by_heads(layer.qkv.weight, weights.heads)))
            matrices.append(packed_by_slices(padded_heads(layer.proj.weight, weights.heads)))
            matrices.append(packed(layer.fc1.weight))
            matrices.append(packed_by_slices(layer.fc2.weight))
            vectors += [layer.norm_1.weight, layer.norm_1.bias, by_heads(layer.qkv.bias, weights.heads)]
            vectors += [layer.proj.bias, layer.norm_2.weight, layer.norm_2.bias, layer.fc1.bias, layer.fc2.bias]
            vectors.append(weights.wte.new_tensor([layer.scale, 0, 0, 0], dtype=torch.float32))
        matrices.append(packed(weights.head))
        vectors += [weights.norm.weight, weights.norm.bias]
        return cls(torch.cat(matrices).view(-1, CHUNK_BYTES), torch.cat([vector.float() for vector in vectors]))

    @property
    def nbytes(self) -> int:
        return self.weights.nbytes + self.vectors.nbytes


def by_heads(qkv: Tensor, heads: int) -> Tensor:
    """[3 width, ...] -> the same, rows [query, key, value][heads][head_dim] as [heads][query, key, value][head_dim]."""
    return qkv.view(3, heads, -1, *qkv.shape[1:]).transpose(0, 1).reshape(qkv.shape)


def padded_heads(proj: Tensor, heads: int) -> Tensor:
    """[N, width] -> [N, heads * columns], each head's columns zero-padded to a multiple of 64 bytes."""
    chunk = CHUNK_ROW_BYTES // proj.element_size()
    of_heads = proj.view(len(proj), heads, -1)
    return torch.nn.functional.pad(of_heads, (0, -of_heads.size(-1) % chunk)).flatten(1)


def tiled(weight: Tensor) -> Tensor:
    """[N, K] -> [ceil(N / 8), K in chunks of 64 bytes, 8, 64 bytes of a row]. Rows past N are zeros."""
    rows, columns = weight.shape
    tiles, chunk = -(-rows // TILE_ROWS), CHUNK_ROW_BYTES // weight.element_size()
    padded = torch.nn.functional.pad(weight, (0, 0, 0, tiles * TILE_ROWS - rows))
    return padded.view(tiles, TILE_ROWS, columns // chunk, chunk).transpose(1, 2)


def packed(weight: Tensor) -> Tensor:
    """uint8 [bytes]: a column-parallel matrix [N, K], [tiles][chunks][8][64 bytes], see `tiled`."""
    return tiled(weight).contiguous().view(-1).view(torch.uint8)


def packed_by_slices(weight: Tensor) -> Tensor:
    """uint8 [bytes]: a row-parallel matrix [N, K], [8 slices][chunks][tiles][8][64 bytes], whole tiles per slice."""
    tiles = tiled(weight)
    ends = [len(tiles) * i // SLICES for i in range(SLICES + 1)]
    slices = [tiles[begin:end].transpose(0, 1).flatten() for begin, end in pairwise(ends)]
    return torch.cat(slices).view(torch.uint8)


class PersistentStep:
    """Decode steps of a text, in launches of launch_steps steps.

    packed_weights: a second copy of the weights. plan: Plan.of these weights and this batch; if sampled, tokens are
        sampled according to state.uniforms, temperature, top_k and top_p (sampling.draw). cache: [layers, 2, batch or
        more, heads, max_seq_len, head_dim]. state: of the batch. keep_logits: whether the last step's logits are kept,
        in `logits`. ctas: as passed to Plan.of.
    """

    def __init__(
        self,
        weights: Weights,
        kernels: EngineKernels,
        packed_weights: PackedWeights,
        plan: Plan,
        cache: Tensor,
        state: DecodeState,
        keep_logits: bool = False,
        ctas: int = 0,
    ) -> None:
        self.weights, self.kernels, self.packed, self.cache, self.state = weights, kernels, packed_weights, cache, state
        self.plan, self.ctas = plan, ctas
        batch, device = len(state.positions), kernels.device
        self.on_gpu = device.type == "cuda"
        self.workspace = torch.zeros(plan.workspace, dtype=torch.int64, device=device)
        self.logits = (
            torch.zeros(batch, weights.vocab, dtype=torch.float32, device=device)
            if keep_logits or plan.sampled
            else None
        )
        self.arrived = torch.full(state.history.shape, NOT_YET, dtype=torch.int32, device="cpu", pin_memory=self.on_gpu)
        self.cancelled = torch.zeros(1, dtype=torch.int32, device="cpu", pin_memory=self.on_gpu)
        self.launch_steps = len(state.history)
        self._numbers = self.arrived.numpy()
        self._next_flag = 1
        self._launched = self._wanted = 0  # steps of the text: launched, requested
        # The end of a prefill, in the step's own kernels
        caches = [(keys[:batch], values[:batch]) for keys, values in cache]
        fits = self.on_gpu and FusedStep.fits(weights, kernels, batch)
        self._first = FusedStep(weights, kernels, caches, state, self.arrived) if fits else None

    def advance(self, tokens: Tensor) -> None:
        """Records the tokens int64 [batch] and advances to them."""
        self.state.advance(tokens)

    def expect_first(self) -> None:
        """Called before a prefill, whose end produces the text's first tokens: tokens(0) waits for them."""
        self._numbers[0] = NOT_YET

    def finish(self, x: Tensor, heads: Tensor, sampled: bool) -> None:
        """Like TorchStep's."""
        if self._first is not None:
            self._first.finish(x, heads, sampled)
        else:
            self.advance(first_tokens(self.weights, self.kernels, self.state, x, heads, sampled))
            self.arrived[0].copy_(self.state.history[0], non_blocking=True)

    def start(self, steps: int, first: int = 1) -> None:
        """Starts that many steps, none if 0; the first one produces token `first` of the text, as tokens() counts them.

        They end early when all sequences have stopped, and after cancel().
        """
        self._numbers[first:] = NOT_YET
        self._launched, self._wanted = first, first + steps
        if steps:
            self._launch(True)

    def _launch(self, first: bool) -> None:
        steps = min(self.launch_steps, self._wanted - self._launched)
        if self._next_flag + steps > LAST_FLAG:
            self.workspace[1:].zero_()
            self._next_flag = 1
        state, weights = self.state, self.weights
        drawn = (state.uniforms, state.temperature, state.top_k, state.top_p) if self.plan.sampled else [None] * 4
        self.kernels.gpt2.run_steps(
            self.packed.weights,
            self.packed.vectors,
            weights.wte,
            weights.wpe,
            self.cache,
            self.workspace,
            self.logits,
            state.positions,
            state.lengths,
            state.steps,
            state.finished,
            state.stop,
            state.history,
            self.arrived,
            self.cancelled,
            weights.eps,
            weights.layers[0].fc1.weight.size(0),
            steps,
            self._next_flag,
            first,
            *drawn,
            max_ctas=self.ctas,
        )
        self._next_flag += steps
        self._launched += steps

    def tokens(self, step: int) -> list[int]:
        """Waits for the tokens of a step that was started: a list of int, one per sequence.

        RuntimeError if the kernel failed, ArithmeticError if logits are not numbers: the kernel's sums support numbers
        below 2^17 in magnitude (fixed_point.cuh).
        """
        if self._launched < self._wanted and step + self.launch_steps >= self._launched:
            self._launch(False)
        numbers, polls = self._numbers[step], 0
        while (numbers == NOT_YET).any():
            polls += 1
            if polls % 10_000 == 0 and self.on_gpu:
                torch.cuda.current_stream().query()  # raises the kernel's error
        found = numbers.tolist()
        if NO_TOKEN in found:
            raise ArithmeticError(
                f"step {step} of sequence {found.index(NO_TOKEN)} has logits that are no numbers; a layer added more "
                f"than 2^17 to the residual stream, or something that is no number: use Engine(..., persistent=False)"
            )
        return found

    def cancel(self) -> None:
        """Ends the launch, if any, after the current step, and waits for it; queued ones do nothing."""
        self._wanted = self._launched
        self.cancelled.fill_(1)
        if self.on_gpu:
            torch.cuda.current_stream().synchronize()
        self.cancelled.zero_()

    def measure_launch(self) -> None:
        """Sets launch_steps so that a launch lasts at most LAUNCH_MS: times steps at the end of the context."""
        steps = min(8, len(self.state.history) - 1)
        end = torch.full_like(self.state.positions, len(self.state.history) - 1 - steps)
        begin, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(2):  # the first launch loads the kernel
            self.state.begin(end, None)
            begin.record()
            self.start(steps)
            done.record()
            done.synchronize()
        self.launch_steps = max(1, int(LAUNCH_MS * steps / begin.elapsed_time(done)))

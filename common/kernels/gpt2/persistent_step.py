"""All steps of a text as one kernel (persistent_step.cu): up to 4 sequences, Hopper and later GPUs.

    packed = PackedWeights.of(weights)          once per model; None: there is no such kernel for it
    step = PersistentStep(weights, kernels, packed, cache, state)
    step.advance(tokens)                        the prompt's first new tokens
    step.start(99); step.tokens(1) ... step.tokens(99)

The kernel runs on while the host reads the tokens, one by one, from memory that both reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from common.kernels.gpt2.decode_step import DecodeState, first_tokens
from common.kernels.gpt2.engine_kernels import EngineKernels
from common.kernels.gpt2.weights import Weights

UNIT_ROWS, GROUP_ROW_BYTES, SLICES = 8, 64, 8  # step_phases.h
NOT_YET, NO_TOKEN = -1, -2
LAST_TAG = 2**32 - 1


@dataclass(frozen=True)
class Plan:
    """What plan_steps says. blocks: of the kernel; weight_bytes, vectors: of PackedWeights; words: between
    blocks; tags: of these that a step takes. sampled: whether tokens are drawn.
    """

    blocks: int
    weight_bytes: int
    vectors: int
    words: int
    tags: int
    sampled: bool = False

    @classmethod
    def of(
        cls,
        weights: Weights,
        kernels: EngineKernels,
        batch: int,
        max_seq_len: int,
        sampled: bool = False,
        blocks: int = 0,
    ) -> Plan | None:
        """None if the kernel does not take this model or so many sequences on this GPU. blocks: at most (0: all)."""
        if kernels.variant != "tuned":
            return None
        hidden = weights.layers[0].expand.weight.size(0)
        sizes = (len(weights.layers), weights.heads, hidden, batch, max_seq_len)
        found = cls(*kernels.gpt2.plan_steps(weights.wte, *sizes, sampled, most_blocks=blocks), sampled)
        return found if found.blocks else None


@dataclass(frozen=True)
class PackedWeights:
    """weights: uint8 [weight_bytes], vectors: float32 [vectors], in the order of step_phases.h."""

    weights: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, weights: Weights) -> PackedWeights:
        matrices, vectors = [], []
        for layer in weights.layers:
            matrices.append(packed(by_heads(layer.qkv.weight, weights.heads)))
            matrices.append(packed_by_columns(filled_up(layer.projection.weight, weights.heads)))
            matrices.append(packed(layer.expand.weight))
            matrices.append(packed_by_columns(layer.contract.weight))
            vectors += [layer.norm_1.weight, layer.norm_1.bias, by_heads(layer.qkv.bias, weights.heads)]
            vectors += [layer.projection.bias, layer.norm_2.weight, layer.norm_2.bias]
            vectors += [layer.expand.bias, layer.contract.bias]
            vectors.append(weights.wte.new_tensor([layer.scale, 0, 0, 0], dtype=torch.float32))
        matrices.append(packed(weights.head))
        vectors += [weights.norm.weight, weights.norm.bias]
        return cls(torch.cat(matrices), torch.cat([vector.float() for vector in vectors]))


def by_heads(qkv: Tensor, heads: int) -> Tensor:
    """[3 width, ...] -> the same, rows [query, key, value][heads][head_dim] as [heads][query, key, value][head_dim]."""
    return qkv.view(3, heads, -1, *qkv.shape[1:]).transpose(0, 1).reshape(qkv.shape)


def filled_up(projection: Tensor, heads: int) -> Tensor:
    """[N, width] -> [N, heads * columns], each head's columns followed by zeros up to a multiple of 64 bytes."""
    group = GROUP_ROW_BYTES // projection.element_size()
    of_heads = projection.view(len(projection), heads, -1)
    return torch.nn.functional.pad(of_heads, (0, -of_heads.size(-1) % group)).flatten(1)


def grouped(weight: Tensor) -> Tensor:
    """[N, K] -> [ceil(N / 8), K in groups of 64 bytes, 8, 64 bytes of a row]. Rows beyond N are zeros."""
    rows, columns = weight.shape
    units, group = -(-rows // UNIT_ROWS), GROUP_ROW_BYTES // weight.element_size()
    padded = torch.nn.functional.pad(weight, (0, 0, 0, units * UNIT_ROWS - rows))
    return padded.view(units, UNIT_ROWS, columns // group, group).transpose(1, 2)


def packed(weight: Tensor) -> Tensor:
    """uint8 [bytes]: a matrix [N, K] of which blocks take whole rows, [units][groups][8][64 bytes], see `grouped`.

    K: a multiple of 64 bytes.
    """
    return grouped(weight).contiguous().view(-1).view(torch.uint8)


def packed_by_columns(weight: Tensor) -> Tensor:
    """uint8 [bytes]: a matrix [N, K] of which blocks take some columns, [8 slices][groups][units][8][64 bytes].

    Slices are as equal as may be, in whole units. K: a multiple of 64 bytes.
    """
    units = grouped(weight)
    ends = [len(units) * i // SLICES for i in range(SLICES + 1)]
    slices = [units[begin:end].transpose(0, 1).flatten() for begin, end in pairwise(ends)]
    return torch.cat(slices).view(torch.uint8)


class PersistentStep:
    """Runs of decode steps, each one launch.

    packed: the weights once more. plan: Plan.of these weights and this batch; if it is a sampled one, tokens are drawn
    as state.uniforms, temperature, top_k and top_p say (sampling.draw). cache: [layers, 2, batch or more, heads,
    max_seq_len, head_dim]. state: of the batch. keep_logits: whether the last step's logits are kept, in `logits`.
    blocks: as Plan.of was given.
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
        blocks: int = 0,
    ) -> None:
        self.weights, self.kernels, self.packed, self.cache, self.state = weights, kernels, packed_weights, cache, state
        self.plan, self.blocks = plan, blocks
        batch, device = len(state.positions), kernels.device
        self.words = torch.zeros(plan.words, dtype=torch.int64, device=device)
        self.logits = (
            torch.zeros(batch, weights.vocab, dtype=torch.float32, device=device)
            if keep_logits or plan.sampled
            else None
        )
        pinned = device.type == "cuda"
        self.arrived = torch.full(state.history.shape, NOT_YET, dtype=torch.int32, device="cpu", pin_memory=pinned)
        self.cancelled = torch.zeros(1, dtype=torch.int32, device="cpu", pin_memory=pinned)
        self._numbers = self.arrived.numpy()
        self._next_tag = 1

    def advance(self, tokens: Tensor) -> None:
        """Writes the tokens int64 [batch] down and moves on to them."""
        self.state.advance(tokens)

    def finish(self, x: Tensor, heads: Tensor, sampled: bool) -> None:
        """As TorchStep's."""
        self.advance(first_tokens(self.weights, self.kernels, self.state, x, heads, sampled))

    def start(self, steps: int) -> None:
        """Launches so many steps, none if 0. They end early when all sequences have stopped, and behind cancel()."""
        if steps == 0:
            return
        self.arrived.fill_(NOT_YET)
        if self._next_tag + steps * self.plan.tags > LAST_TAG:
            self.words.zero_()
            self._next_tag = 1
        state, weights = self.state, self.weights
        drawn = (state.uniforms, state.temperature, state.top_k, state.top_p) if self.plan.sampled else [None] * 4
        self.kernels.gpt2.run_steps(
            self.packed.weights,
            self.packed.vectors,
            weights.wte,
            weights.wpe,
            self.cache,
            self.words,
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
            weights.layers[0].expand.weight.size(0),
            steps,
            self._next_tag,
            *drawn,
            most_blocks=self.blocks,
        )
        self._next_tag += steps * self.plan.tags

    def tokens(self, step: int) -> list[int]:
        """Waits for the tokens of a step that was started: a list of int, one per sequence.

        RuntimeError if the kernel failed, ArithmeticError if logits are no numbers: the kernel's sums take numbers
        below 2^17 in magnitude (counted_sums.cuh).
        """
        numbers, looks = self._numbers[step], 0
        while (numbers == NOT_YET).any():
            looks += 1
            if looks % 10_000 == 0 and self.kernels.device.type == "cuda":
                torch.cuda.current_stream().query()  # raises what the kernel died of
        found = numbers.tolist()
        if NO_TOKEN in found:
            raise ArithmeticError(
                f"step {step} of sequence {found.index(NO_TOKEN)} has logits that are no numbers; a layer added more "
                f"than 2^17 to the residual stream, or something that is no number: take the engine's graph"
            )
        return found

    def cancel(self) -> None:
        """Ends the run behind the step that is under way, if there is one, and waits for it."""
        self.cancelled.fill_(1)
        if self.kernels.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        self.cancelled.zero_()

"""One decode step for a batch: takes the newest tokens, produces the next ones, entirely on the device.

    DecodeState         a batch's state between two steps
    TorchStep           the step with any kernels and any batch: torch's GEMMs
    FusedStep           the step of the tuned kernels for up to 4 sequences: four kernels and the attention per layer

A step reads and writes only tensors with fixed addresses. So it can be captured once and replayed: every replay
continues at the position where the last one stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from common.kernels.gpt2.engine_kernels import EngineKernels
from common.kernels.gpt2.forward import DecodeAttention, blocks, embed, rest
from common.kernels.gpt2.sampling import draw
from common.kernels.gpt2.weights import Affine, Weights

SETTING = 4  # int32 numbers per sampling setting in DecodeState.inputs: 16 bytes, of which 8 are used


@dataclass(frozen=True)
class DecodeState:
    """A batch's state between two steps, on the kernels' device. Each sequence has its own position.

    positions: int32 [batch], the slot of the newest token, whose key and value the next step writes.
    lengths: int32 [batch], positions + 1: the tokens that the next step attends to.
    steps: int32 [batch], number of tokens produced. finished: int32 [batch], 1: does not advance.
    stop: int32 [1], the token that finishes a sequence; -1: none.
    history: int32 [max_seq_len, batch], the tokens produced, by step.
    uniforms: float64 [max_seq_len, batch]; temperature, top_p: float64 [1]; top_k: int64 [1]: see sampling.draw.
    inputs: int32, everything a text starts with, in the order in which one copy uploads it (PromptBuffer): `drawn`
        numbers, which are temperature, top_p, top_k and uniforms; positions, lengths, steps, finished, stop; prompts.
        All but the prompts, see `prompts`, are views of it.
    drawn: the number of int32 in `inputs` that only a sampled text needs.
    """

    positions: Tensor
    lengths: Tensor
    steps: Tensor
    finished: Tensor
    stop: Tensor
    history: Tensor
    uniforms: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    inputs: Tensor
    drawn: int

    @classmethod
    def empty(cls, batch: int, max_seq_len: int, device: torch.device) -> DecodeState:
        def ints(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        drawn = 3 * SETTING + 2 * max_seq_len * batch
        inputs = ints(drawn + 4 * batch + 1 + batch * max_seq_len)
        settings = inputs[: 3 * SETTING].view(3, SETTING)[:, :2]
        temperature, top_p = settings[0].view(torch.float64), settings[1].view(torch.float64)
        top_k = settings[2].view(torch.int64)
        for one in (temperature, top_p, top_k):
            one.fill_(1)
        positions, lengths, steps, finished = inputs[drawn : drawn + 4 * batch].view(4, batch)
        return cls(
            positions=positions,
            lengths=lengths,
            steps=steps,
            finished=finished,
            stop=inputs[drawn + 4 * batch :][:1],
            history=ints(max_seq_len, batch),
            uniforms=inputs[3 * SETTING : drawn].view(torch.float64).view(max_seq_len, batch),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            inputs=inputs,
            drawn=drawn,
        )

    def prompts(self, seq_len: int) -> Tensor:
        """int32 [batch, seq_len], the part of `inputs` for prompts of up to seq_len tokens, padded on the right."""
        batch = len(self.positions)
        return self.inputs[self.drawn + 4 * batch + 1 :][: batch * seq_len].view(batch, seq_len)

    def begin(self, last_slots: Tensor, stop_token: int | None) -> None:
        """Starts a new text: the prompts' last tokens are at last_slots, int32 [batch]; no token has been produced."""
        self.positions.copy_(last_slots)
        self.lengths.copy_(self.positions + 1)
        self.steps.zero_()
        self.finished.zero_()
        self.stop.fill_(-1 if stop_token is None else stop_token)

    def advance(self, tokens: Tensor) -> None:
        """Records the tokens int64 [batch] and advances to them; a finished sequence does not advance."""
        columns = torch.arange(len(tokens), device=tokens.device)
        self.history.index_put_((self.steps.long(), columns), tokens.int())
        self.steps.add_(1)
        self.finished.logical_or_(tokens == self.stop)
        self.positions.add_(1 - self.finished)
        torch.add(self.positions, 1, out=self.lengths)

    def choose(self, logits: Tensor, sampled: bool) -> Tensor:
        """The next tokens, int64 [batch], from logits float32 [batch, vocab]; the largest unless `sampled`."""
        if not sampled:
            return logits.argmax(-1)
        uniform = self.uniforms.gather(0, self.steps.long()[None])[0]
        return draw(logits, uniform, self.temperature, self.top_k, self.top_p)


class TorchStep:
    """A step for any batch, with the taught or the tuned kernels: task 7's kernels between torch's GEMMs.

    caches: per layer (k_cache, v_cache) [batch, heads, max_seq_len, head_dim].
    """

    def __init__(self, weights: Weights, kernels: EngineKernels, caches, state: DecodeState) -> None:
        self.weights, self.kernels, self.state = weights, kernels, state
        self.attend = DecodeAttention(weights, kernels, caches, state.positions, state.lengths)
        self.tokens = torch.zeros(len(state.positions), dtype=torch.int64, device=kernels.device)

    def advance(self, tokens: Tensor) -> None:
        """Records the tokens int64 [batch] and advances to them."""
        self.tokens.copy_(tokens)
        self.state.advance(tokens)

    def run(self, sampled: bool) -> None:
        """Runs the newest tokens through the model, and chooses and records the next ones."""
        x = embed(self.weights, self.tokens, self.state.positions)
        normed = blocks(self.weights, self.kernels.gpt2, x, self.attend)
        self.advance(self.state.choose(F.linear(normed, self.weights.head).float(), sampled))

    def finish(self, x: Tensor, heads: Tensor, sampled: bool) -> None:
        """Ends a prefill, given what up_to_last_attention returned, [batch * seq_len, width] each."""
        self.advance(first_tokens(self.weights, self.kernels, self.state, x, heads, sampled))


def first_tokens(
    weights: Weights, kernels: EngineKernels, state: DecodeState, x: Tensor, heads: Tensor, sampled: bool
) -> Tensor:
    """The tokens int64 [batch] after the prompts, from what up_to_last_attention returned."""
    last = state.positions.long()[:, None, None].expand(-1, 1, weights.width)  # no other rows are needed from here on
    x, heads = (one.view(len(last), -1, weights.width).gather(1, last)[:, 0] for one in (x, heads))
    logits = F.linear(rest(weights, kernels.gpt2, x, heads), weights.head).float()
    return state.choose(logits, sampled)


@dataclass(frozen=True)
class NormedProduct:
    """A linear layer after a layernorm, as the step's kernels take it (gpt2.h).

    norm_weight: [K]. weight: [N, K]. weight_sum: float32 [N], what the mean is multiplied by.
    bias: float32 [N], the output for an input that equals the mean throughout.
    """

    norm_weight: Tensor
    weight: Tensor
    weight_sum: Tensor
    bias: Tensor

    @classmethod
    def of(cls, norm: Affine, weight: Tensor, bias: Tensor | None = None) -> NormedProduct:
        wide = weight.double()
        total = wide @ norm.bias.double() + (0.0 if bias is None else bias.double())
        return cls(norm.weight, weight, (wide @ norm.weight.double()).float(), total.float())


class FusedStep:
    """A step of the tuned kernels: every GEMV has its prologue and epilogue fused (gpt2.h).

    The residual stream is float32. Arguments as in TorchStep; arrived: like state.history, in the host's memory: tokens
    are stored there, too.
    """

    def __init__(
        self, weights: Weights, kernels: EngineKernels, caches, state: DecodeState, arrived: Tensor | None = None
    ) -> None:
        self.weights, self.kernels, self.caches, self.state = weights, kernels, caches, state
        self.arrived = arrived
        batch, ops = len(state.positions), kernels.gpt2

        def buffer(*shape: int, dtype: torch.dtype = weights.wte.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=kernels.device)

        self.residual = buffer(batch, weights.width, dtype=torch.float32)
        self.query = buffer(batch, weights.heads, 1, weights.head_dim)
        self.hidden = buffer(batch, weights.layers[0].fc1.weight.size(0))
        self.logits = buffer(batch, weights.vocab, dtype=torch.float32)
        self.best = buffer(batch, ops.step_blocks(weights.head, batch), dtype=torch.int64)
        self.draws = ops.draw_fits(self.logits)
        self.tokens = buffer(batch, dtype=torch.int64)
        self.products = [
            (
                NormedProduct.of(layer.norm_1, layer.qkv.weight, layer.qkv.bias),
                Affine(layer.proj.weight, layer.proj.bias.float()),
                NormedProduct.of(layer.norm_2, layer.fc1.weight, layer.fc1.bias),
                Affine(layer.fc2.weight, layer.fc2.bias.float()),
            )
            for layer in weights.layers
        ]
        self.head = NormedProduct.of(weights.norm, weights.head)

    @staticmethod
    def fits(weights: Weights, kernels: EngineKernels, batch: int) -> bool:
        """Whether these kernels support these weights and this many sequences."""
        if kernels.variant != "tuned":
            return False
        layer = weights.layers[0]
        with_norm = (layer.qkv.weight, layer.fc1.weight, weights.head)
        return all(kernels.gpt2.step_fits(matrix, batch, True) for matrix in with_norm) and all(
            kernels.gpt2.step_fits(affine.weight, batch, False) for affine in (layer.proj, layer.fc2)
        )

    def advance(self, tokens: Tensor) -> None:
        """Records the tokens int64 [batch], advances to them and looks up their embeddings."""
        self._next_token(None, tokens, False)

    def _next_token(self, best: Tensor | None, tokens: Tensor | None, early: bool) -> None:
        state, weights = self.state, self.weights
        self.kernels.gpt2.next_token(
            best,
            tokens,
            state.stop,
            state.finished,
            state.steps,
            state.positions,
            state.lengths,
            state.history,
            weights.wte,
            weights.wpe,
            self.residual,
            early,
            self.arrived,
        )

    def run(self, sampled: bool) -> None:
        """Runs the newest tokens through the model, and chooses and records the next ones."""
        ops, state = self.kernels.gpt2, self.state
        attend = self.kernels.decode.decode_attention
        for number, (qkv, *_) in enumerate(self.products):
            k_cache, v_cache = self.caches[number]
            # The first kernel of a graph has no preceding kernel to overlap with
            ops.step_qkv(*self._normed(qkv), state.positions, self.query, k_cache, v_cache, early=number > 0)
            heads = attend(self.query, k_cache, v_cache, state.lengths, self.weights.layers[number].scale)
            self._behind_attention(number, heads.view(len(self.residual), -1))
        self._choose(sampled)

    def finish(self, x: Tensor, heads: Tensor, sampled: bool) -> None:
        """Like TorchStep's."""
        heads = self.kernels.gpt2.last_rows(x, heads, self.state.positions, self.weights.head, self.residual)
        self._behind_attention(len(self.products) - 1, heads)
        self._choose(sampled)

    def _normed(self, product: NormedProduct) -> tuple:
        return (
            self.residual,
            product.norm_weight,
            product.weight_sum,
            self.weights.eps,
            product.weight,
            product.bias,
        )

    def _behind_attention(self, number: int, heads: Tensor) -> None:
        """Runs the end of a block. heads: [batch, width]."""
        ops, (_, proj, fc1, fc2) = self.kernels.gpt2, self.products[number]
        ops.step_residual(heads, proj.weight, proj.bias, self.residual, early=True)
        ops.step_gelu(*self._normed(fc1), self.hidden, early=True)
        ops.step_residual(self.hidden, fc2.weight, fc2.bias, self.residual, early=True)

    def _choose(self, sampled: bool) -> None:
        self.kernels.gpt2.step_logits(*self._normed(self.head), self.logits, self.best, early=True)
        if sampled and self.draws:
            state = self.state
            settings = (state.uniforms, state.temperature, state.top_k, state.top_p)
            self.kernels.gpt2.draw_token(self.logits, self.best, state.steps, *settings, self.tokens)
            self._next_token(None, self.tokens, True)
        elif sampled:
            self._next_token(None, self.state.choose(self.logits, True), False)
        else:
            self._next_token(self.best, None, True)

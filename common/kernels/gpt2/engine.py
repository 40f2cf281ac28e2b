"""The engine: GPT-2 with nothing between its kernels. One CUDA graph per token, sampling on the GPU, batches.

    kernels = tuned_kernels()           # engine_kernels.py; the taught ones: load_engine_kernels of task 7
    engine = Engine(model, kernels, dtype="float16", max_batch=4)
    result = engine.generate([prompt, other_prompt], max_new_tokens=100, on_token=lambda sequence, token: ...)

transformers' module defines the computation and provides the weights; its code does not run. What makes it fast:

    prefill   all prompts at once, padded on the right: under a causal mask no token sees the padding after it
    graphs    every buffer has a fixed address, so a step is captured once as a CUDA graph and then replayed: no Python
              and no launches between its kernels. Positions and lengths are on the GPU, and the step itself advances
              them. A prefill is captured for each length that occurs, in steps of 64 tokens (prefill.py).
    one persistent kernel for all steps, of up to 4 sequences on Hopper (persistent_step.py); otherwise a graph for each
    sampling  is the step's last part: the token goes directly to the next step
    the host  launches steps ahead and reads the tokens some steps later, so the GPU never waits for it

In the simulator the same loop runs step by step, without a graph, and its GEMMs are torch's on the CPU.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F

from common.kernels.cuda_graph import captured
from common.kernels.gpt2.decode_step import DecodeState, FusedStep, TorchStep
from common.kernels.gpt2.engine_kernels import EngineKernels
from common.kernels.gpt2.forward import PrefillAttention, blocks, embed
from common.kernels.gpt2.generations import Generations
from common.kernels.gpt2.persistent_step import PackedWeights, PersistentStep, Plan
from common.kernels.gpt2.prefill import Captured, Prefill, PromptBuffer
from common.kernels.gpt2.request import check_request
from common.kernels.gpt2.sampling import uniform_numbers
from common.kernels.gpt2.token_reader import TokenReader
from common.kernels.gpt2.weights import weights_of

STEPS_AHEAD = 2  # launched before the tokens of a step are waited for
PREFILL_UNIT = 64  # tokens: the length of a captured prefill is a multiple of these, or max_seq_len
MOST_PREFILLS = 32  # graphs: all lengths of a context of 1024, sampled and greedy, for one number of prompts


class Engine:
    """GPT-2 on one set of kernels, with its weights, its KV cache and its buffers.

    model: a GPT2LMHeadModel of transformers, on any device and in any dtype; it is read once and not changed.
    kernels: see engine_kernels.py. dtype: of weights, activations and KV cache: "float32", "float16", "bfloat16"
        (the taught kernels: "float32" only).
    max_batch: sequences at once. max_seq_len: tokens of a sequence, prompt and new ones (None: the model's context).
    graphs: whether steps and prefills are captured as CUDA graphs (None: on a GPU). MOST_PREFILLS prefills are kept, by
        number of prompts, length in steps of PREFILL_UNIT tokens, and whether tokens are sampled; they share memory,
        and the least recently used is evicted.
    fused: whether steps run in the tuned step kernels where they fit (None: on a GPU); otherwise task 7's other kernels
        run between torch's GEMMs.
    persistent: whether steps run in one persistent kernel where that fits (None: with graphs and fused kernels;
        README.md has the measurements). It takes a second copy of the weights; `how` reports which of the two a step
        uses, why, and how large the copy is.

    Raises ValueError for a model, dtype or size that is not supported.
    """

    def __init__(
        self,
        model,
        kernels: EngineKernels,
        dtype: str = "float32",
        max_batch: int = 1,
        max_seq_len: int | None = None,
        graphs: bool | None = None,
        fused: bool | None = None,
        persistent: bool | None = None,
    ) -> None:
        if dtype not in kernels.dtypes:
            allowed = ", ".join(map(repr, kernels.dtypes))
            raise ValueError(f"dtype is {dtype!r}; the {kernels.variant} kernels take {allowed}")
        if max_batch < 1:
            raise ValueError(f"max_batch is {max_batch}; allowed: 1 or more")
        context = model.config.n_positions
        if max_seq_len is not None and not 2 <= max_seq_len <= context:
            raise ValueError(f"max_seq_len is {max_seq_len}; allowed: 2 to {context}, the model's context")
        on_gpu = kernels.device.type == "cuda"
        if graphs and not on_gpu:
            raise ValueError("graphs is True, but the simulator has no CUDA graphs; allowed: None or False")
        self.kernels = kernels
        self.device = kernels.device
        self.weights = weights_of(model, getattr(torch, dtype), self.device)
        self.max_batch = max_batch
        self.max_seq_len = max_seq_len or context
        self.graphs = on_gpu if graphs is None else graphs
        self.fused = on_gpu if fused is None else fused
        self.persistent = self.graphs and self.fused if persistent is None else persistent
        shape = (len(self.weights.layers), 2, max_batch, self.weights.heads, self.max_seq_len, self.weights.head_dim)
        self.cache = torch.zeros(shape, dtype=self.weights.wte.dtype, device=self.device)
        self.caches = [(keys, values) for keys, values in self.cache]
        self._packed = None  # PackedWeights, once they are needed
        self._refused = "it does not fit this model, batch or GPU"  # why steps don't use the persistent kernel
        self._plans = {}  # (batch, sampled) -> Plan or None
        self._steps = {}  # (batch, sampled) -> TorchStep, FusedStep or PersistentStep
        self._runs = {}  # the same -> callable that runs a step that is not a PersistentStep
        self._readers = {}  # the same -> the TokenReader of such a step
        self._buffers = {}  # the same -> PromptBuffer
        self._prefills = Captured(MOST_PREFILLS)  # (batch, sampled, seq_len)

    def how(self, batch: int, sampled: bool = False) -> str:
        """Describes what a step of `batch` sequences runs, and why it is not one kernel where it could be."""
        if plan := self._plan(batch, sampled):
            copy = (plan.weight_bytes + 4 * plan.vectors) / 1e6
            words = (
                f"part of one persistent kernel of {plan.ctas} CTAs, {copy:,.0f} MB more for its copy of the weights"
            )
            step = self._steps.get((batch, sampled))
            return f"{words}, {step.launch_steps} steps to a launch" if step is not None and self.graphs else words
        fused = self.fused and FusedStep.fits(self.weights, self.kernels, batch)
        kernels = "fused kernels" if fused else "kernels and GEMMs"
        words = f"a CUDA graph of {kernels}" if self.graphs else "one kernel after another"
        if not self.persistent or self.kernels.variant != "tuned":
            return words
        return f"{words} (not one persistent kernel: {self._refused})"

    def how_prefill(self, longest: int) -> str:
        """Describes what the prefill of prompts of up to `longest` tokens runs."""
        if not self.graphs:
            return "one kernel after another"
        return f"a CUDA graph for {self._seq_len(longest)} tokens"

    @torch.no_grad()
    def warm_up(self, longest: int, batch: int = 1, sampled: bool = False) -> None:
        """Captures what `generate` needs for `batch` prompts of up to `longest` tokens, so that no call has to wait.

        sampled: whether tokens will be sampled. Raises ValueError for what does not fit this engine.
        """
        if not 1 <= longest < self.max_seq_len:
            raise ValueError(f"longest is {longest}; allowed: 1 to {self.max_seq_len - 1}, less than max_seq_len")
        if not 1 <= batch <= self.max_batch:
            raise ValueError(f"batch is {batch}; allowed: 1 to max_batch, which is {self.max_batch}")
        step = self._prepared_step(batch, sampled)
        self._prepared_prefill(step, sampled, self._seq_len(longest))

    @torch.no_grad()
    def generate(
        self,
        prompts,
        *,
        max_new_tokens,
        temperature=0.0,
        top_k=None,
        top_p=None,
        seed=0,
        stop_token=None,
        on_token=None,
    ):
        """Continues every prompt by up to max_new_tokens tokens. Returns Generations.

        prompts: list of lists of token ids; they may differ in length.
        temperature: 0 takes the likeliest token; otherwise tokens are sampled from softmax(logits / temperature), of
            which top_k keeps the k largest and top_p then the largest that together reach top_p (None: all).
        seed: for sampling; sequence i of a batch draws the same numbers in every call with this seed.
        stop_token: a sequence ends where it produces this token (None: never).
        on_token: called as on_token(sequence, token) for every new token except stop_token, in order, a few steps after
            the GPU produced it.

        Graphs needed for a new number of prompts or a new length are captured before the clock starts, so ttft_ms
        excludes that, but the call takes that much longer; see `warm_up`.
        Raises ValueError, before anything runs, for invalid arguments: see check_request.
        """
        called = time.perf_counter()
        self._check(prompts, max_new_tokens, temperature, top_k, top_p)
        checking = time.perf_counter() - called
        batch, sampled = len(prompts), temperature > 0
        step = self._prepared_step(batch, sampled)
        seq_len, buffer = self._seq_len(max(map(len, prompts))), self._buffers[batch, sampled]
        prefill = self._prepared_prefill(step, sampled, seq_len)
        start = time.perf_counter() - checking  # excludes one-time preparation

        draws = None
        if sampled:
            k = min(top_k or self.weights.vocab, self.weights.vocab)
            draws = (uniform_numbers(seed, batch, max_new_tokens), temperature, k, 1.0 if top_p is None else top_p)
        buffer.put(prompts, seq_len, stop_token, draws)
        if isinstance(step, PersistentStep):
            step.expect_first()
        prefill()
        buffer.uploaded()
        result = Generations(batch, stop_token, on_token)
        if isinstance(step, PersistentStep):
            self._follow_kernel(step, result, max_new_tokens, start)
        else:
            run, reader = self._runs[batch, sampled], self._readers[batch, sampled]
            self._follow_launches(run, reader, result, max_new_tokens, start)
        return result

    def _follow_launches(self, run, reader, result, max_new_tokens, start):
        """Launches step after step, a few ahead of the tokens that it hands out."""
        reader.follow(0)
        launched, before = 1, start
        for number in range(max_new_tokens):
            while launched < min(max_new_tokens, number + 1 + STEPS_AHEAD * self.graphs):
                run()
                reader.follow(launched)
                launched += 1
            new = reader.tokens(number)
            now = time.perf_counter()
            if not result.add_step(new, (now - before) * 1e3):
                break
            before = now

    def _follow_kernel(self, step, result, max_new_tokens, start):
        """Launches all steps and hands out their tokens as they arrive. However it ends, the kernel has ended, too."""
        before = start
        try:
            step.start(max_new_tokens - 1)
            for number in range(max_new_tokens):
                new = step.tokens(number)
                now = time.perf_counter()
                if not result.add_step(new, (now - before) * 1e3):
                    break
                before = now
        finally:
            step.cancel()

    @torch.no_grad()
    def logits(self, tokens):
        """Logits of every next token, float32 [batch, seq_len, vocab], by prefill alone; the cache is not touched.

        tokens: int64 [batch, seq_len], on any device. Any batch; seq_len at most the model's context. Raises ValueError
            for another shape.
        """
        if tokens.dim() != 2 or not tokens.numel():
            raise ValueError(f"tokens has shape {list(tokens.shape)}; it must be [batch, seq_len], neither of them 0")
        if tokens.size(1) > self.weights.context:
            raise ValueError(
                f"tokens has shape {list(tokens.shape)}; the model's context is {self.weights.context} tokens"
            )
        positions = torch.arange(tokens.size(1), device=self.device).repeat(len(tokens))
        x = embed(self.weights, tokens.to(self.device).view(-1), positions)
        normed = blocks(self.weights, self.kernels.gpt2, x, PrefillAttention(self.weights, self.kernels, len(tokens)))
        return F.linear(normed, self.weights.head).float().view(*tokens.shape, -1)

    def _check(self, prompts, max_new_tokens, temperature, top_k, top_p):
        if not 1 <= len(prompts) <= self.max_batch:
            raise ValueError(f"there are {len(prompts)} prompts; allowed: 1 to max_batch, which is {self.max_batch}")
        for number, prompt in enumerate(prompts):
            check_request(len(prompt), max_new_tokens, temperature, top_k, self.weights.context, top_p)
            if len(prompt) + max_new_tokens > self.max_seq_len:
                raise ValueError(
                    f"prompt {number} has {len(prompt)} tokens and max_new_tokens is {max_new_tokens}; together at "
                    f"most {self.max_seq_len} are allowed, this engine's max_seq_len"
                )
            vocab = self.weights.vocab
            if min(prompt) < 0 or max(prompt) >= vocab:
                wrong = next(token for token in prompt if not 0 <= token < vocab)
                raise ValueError(f"prompt {number} holds the token {wrong}; allowed: 0 to {vocab - 1}")

    def _prepared_step(self, batch, sampled):
        """The step for this many sequences; also prepares what runs it and reads its tokens."""
        if (batch, sampled) not in self._steps:
            state = DecodeState.empty(batch, self.max_seq_len, self.device)
            self._steps[batch, sampled] = step = self._new_step(batch, sampled, state)
            self._buffers[batch, sampled] = PromptBuffer(state)
            if not isinstance(step, PersistentStep):
                self._readers[batch, sampled] = TokenReader(state.history)
                self._runs[batch, sampled] = self._captured(step, lambda: step.run(sampled))
        return self._steps[batch, sampled]

    def _new_step(self, batch, sampled, state):
        if plan := self._plan(batch, sampled):
            try:
                return self._persistent_step(plan, state)
            except torch.OutOfMemoryError:
                self._refuse("there is no memory for a second copy of the weights")
            except RuntimeError as error:
                self._refuse(f"the GPU does not launch it: {error}")
        caches = [(k[:batch], v[:batch]) for k, v in self.caches]
        fused = self.fused and FusedStep.fits(self.weights, self.kernels, batch)
        return (FusedStep if fused else TorchStep)(self.weights, self.kernels, caches, state)

    def _persistent_step(self, plan, state):
        if self._packed is None:
            self._packed = PackedWeights.of(self.weights)
        step = PersistentStep(self.weights, self.kernels, self._packed, plan, self.cache, state)
        if self.device.type == "cuda":
            step.measure_launch()
        return step

    def _refuse(self, why):
        """Disables the persistent kernel: from now on, steps are graphs of kernels."""
        self._packed, self._refused, self._plans = None, why, dict.fromkeys((n, s) for n in range(1, 5) for s in (0, 1))

    def _plan(self, batch, sampled):
        """The persistent kernel's plan for `batch` sequences; None if it does not support them."""
        if not self.persistent:
            return None
        if (batch, sampled) not in self._plans:
            self._plans[batch, sampled] = Plan.of(self.weights, self.kernels, batch, self.max_seq_len, sampled)
        return self._plans[batch, sampled]

    def _seq_len(self, longest):
        """The length for which the prefill of prompts of up to `longest` tokens is made."""
        unit = PREFILL_UNIT if self.graphs else 1
        return min(-(-longest // unit) * unit, self.max_seq_len)

    def _prepared_prefill(self, step, sampled, seq_len):
        """Runs the prefill of what was put into the step's PromptBuffer: directly, or as a graph."""
        batch = len(step.state.positions)
        buffer = self._buffers[batch, sampled]

        def made():
            buffer.put([[0]] * batch, seq_len, None)  # capturing runs it once
            caches = [(k[:batch], v[:batch]) for k, v in self.caches]
            return Prefill(self.weights, self.kernels, caches, step, buffer, seq_len, sampled).run

        return self._prefills.get((batch, sampled, seq_len), made) if self.graphs else made()

    def _captured(self, step, call):
        """Runs `call`, which uses this step's state: directly, or as a graph."""
        if not self.graphs:
            return call
        # Capturing runs it once, at the start of a sequence; the next prefill overwrites what it writes there
        step.state.begin(torch.zeros_like(step.state.positions), None)
        return captured(call)

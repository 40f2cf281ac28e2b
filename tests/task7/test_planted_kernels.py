"""Mistakes planted in task 7's kernels and in the engine: every one is caught, and where it can be, named."""

import pytest
import torch
from planted import Planted, all_pass, assert_told
from transformers import GPT2Config, GPT2LMHeadModel

from common.kernels.gpt2 import decode_step, prefill
from common.kernels.gpt2 import forward as gpt2_forward
from common.kernels.gpt2.engine import Engine
from common.testing.judging import judge
from task7.cases import cases
from task7.given.operators import load_engine_kernels

VARIANCE = "rsqrtf(«warp_sum(squares) / width + eps»)"

TASK7 = Planted(
    "task7",
    {
        # row_moments
        "no_eps": [(VARIANCE, "warp_sum(squares) / width", 1)],
        "n_minus_1": [(VARIANCE, "warp_sum(squares) / (width - 1) + eps", 1)],
        "one_pass_variance": [
            ("«(row[col] - moments.mean) * (row[col] - moments.mean)»;", "row[col] * row[col]", 1),
            (VARIANCE, "warp_sum(squares) / width - moments.mean * moments.mean + eps", 1),
        ],
        "variance_of_32_columns": [("«col < width»; col += 32)\n        squares", "col < 32 && col < width", 1)],
        # layernorm_kernel
        "no_residual": [("residual == nullptr ? x[i] : x[i] + residual[i]", "x[i]", 1)],
        "weight_forgotten": [("moments.inverse_std * «weight[col]»", "1.0f", 1)],
        "last_row_unwritten": [("if («row >= rows») return;", "row >= rows - (rows > 1)", 1)],
        # gelu, bias_gelu_kernel
        "erf": [
            (
                "0.5f * x * (1.0f + tanhf(SQRT_2_OVER_PI * (x + 0.044715f * x * x * x)))",
                "0.5f * x * (1.0f + erff(0.70710678f * x))",
                1,
            )
        ],
        "no_bias": [("gelu(«x[i] + bias[i % width]»)", "x[i]", 1)],
        "bias_of_the_row": [("bias[«i % width»]", "i / width % width", 1)],
    },
)

# (mistake, case, the mistake's name or None)
PLANTED = [
    ("no_eps", "rows of equal values", "no eps"),
    ("no_eps", "values of 0.001", "no eps"),
    ("n_minus_1", "31 columns", "variance over width - 1"),
    ("one_pass_variance", "a mean of 1,000", None),
    ("variance_of_32_columns", "33 rows of 100", None),
    ("no_residual", "768 columns", "residual not added"),
    ("weight_forgotten", "1,600 columns", "weight forgotten"),
    ("last_row_unwritten", "33 rows of 100", None),
    ("erf", "below 0", "erf instead of tanh"),
    ("erf", "3,072 columns, gelu", None),
    ("no_bias", "31 columns, gelu", "bias forgotten"),
    ("bias_of_the_row", "113 x 203", "bias by row"),
]


def case_of(name):
    if name.endswith(", gelu"):
        return next(case for case in cases() if case.part == "gelu" and case.name == name.removesuffix(", gelu"))
    return next(case for case in cases() if case.name == name)


@pytest.mark.parametrize(("planted", "case", "name"), PLANTED)
def test_a_mistake_is_caught(backend, planted, case, name):
    verdict = judge(case_of(case), TASK7.operators(planted, backend))
    assert_told(verdict, ".")
    if name:
        assert verdict.mistakes[:1] == [name], verdict.diagnosis


test_the_solution_passes_everything = all_pass("task7", cases())


# ------------------------------------------------------------------------------------------------------- the engine


@pytest.fixture(scope="module")
def kernels(backend):
    return load_engine_kernels("solution", backend)


@pytest.fixture(scope="module")
def model():
    """A GPT-2 so small and so unruly that its greedy texts do not repeat themselves."""
    torch.manual_seed(1)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=97, n_positions=64, initializer_range=0.4)
    return GPT2LMHeadModel(config).eval()


PROMPTS = [[5, 17, 80, 3, 41], [9, 2], [60, 61, 62, 63, 64, 65, 66, 67]]
NEW = 12


def expected(model, prompt):
    made = model.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    return made[0, len(prompt) :].tolist()


def texts(model, kernels):
    return Engine(model, kernels, max_batch=3).generate(PROMPTS, max_new_tokens=NEW).tokens


def stale_position(monkeypatch):
    """What a captured graph does whose position was a number of the host: every replay writes to the same slot."""

    def add_once(self, tokens, right=decode_step.TorchStep.advance):
        before = self.state.positions.clone()
        right(self, tokens)
        self.state.positions.copy_(torch.where(self.state.steps > 2, before, self.state.positions))

    monkeypatch.setattr(decode_step.TorchStep, "advance", add_once)


def length_not_advanced(monkeypatch):
    class Stale(gpt2_forward.DecodeAttention):
        def __init__(self, weights, kernels, caches, positions, lengths):
            super().__init__(weights, kernels, caches, positions, positions)  # one token less than there is

    monkeypatch.setattr(decode_step, "DecodeAttention", Stale)


def prompts_end_at_the_longest(monkeypatch):
    def put(self, prompts, seq_len, stop_token, right=prefill.PromptBuffer.put):
        right(self, prompts, seq_len, stop_token)
        self.state.positions.fill_(self.state.positions.max())
        self.state.lengths.fill_(self.state.lengths.max())

    monkeypatch.setattr(prefill.PromptBuffer, "put", put)


def prefill_not_causal(monkeypatch):
    class Flash:
        def __init__(self, ops):
            self.ops = ops

        def flash_attention(self, query, key, value, causal, scale):
            return self.ops.flash_attention(query, key, value, False, scale)

    class Full(gpt2_forward.PrefillAttention):
        def __init__(self, weights, kernels, batch, caches=None):
            super().__init__(weights, kernels, batch, caches)
            self.kernels = type(kernels)(Flash(kernels.flash), kernels.decode, kernels.gpt2, kernels.variant)

    monkeypatch.setattr(prefill, "PrefillAttention", Full)


def last_norm_without_residual(monkeypatch):
    def forgetful(weights, gpt2, x, attend):
        class Forgetful:
            bias_gelu = staticmethod(gpt2.bias_gelu)

            @staticmethod
            def layernorm(x, residual, weight, bias, eps):
                lost = None if weight is weights.norm.weight else residual
                return gpt2.layernorm(x, lost, weight, bias, eps)

        return gpt2_forward.blocks(weights, Forgetful, x, attend)

    monkeypatch.setattr(decode_step, "blocks", forgetful)


def test_the_engine_writes_what_transformers_writes(model, kernels):
    assert texts(model, kernels) == [expected(model, prompt) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "plant",
    [
        stale_position,
        length_not_advanced,
        prompts_end_at_the_longest,
        prefill_not_causal,
        last_norm_without_residual,
    ],
)
def test_a_mistake_in_the_engine_is_caught(monkeypatch, model, kernels, plant):
    plant(monkeypatch)
    assert texts(model, kernels) != [expected(model, prompt) for prompt in PROMPTS]

"""The course's attention inside plain transformers: from_pretrained, generate(), caches, padding, errors.

The oracle is transformers' own sdpa attention with DynamicCache. First the Python around the kernels, on
`TorchOps`, then the real kernels.
"""

from __future__ import annotations

import copy
from itertools import accumulate

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch_operators import GROUPED, TorchOps, attached, padded, positions, tiny_config, tiny_model, tokens
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    DeepseekV3Config,
    DynamicCache,
    Gemma2Config,
    GemmaConfig,
    GPT2Config,
    GptOssConfig,
    T5Config,
    T5ForConditionalGeneration,
)

from common.kernels import attention_kernels
from common.kernels.gpt2.supported_models import check_config
from task7.front_door import kernel_attention
from task7.front_door.cache import KernelCache
from task7.front_door.kernel_attention import KernelAttention, register
from task7.front_door.padding import Padding

MODEL_TYPES = ("gpt2", *GROUPED)
GREEDY = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}


pytestmark = pytest.mark.usefixtures("one_thread_without_gradients")


def assert_exact(logits, model, ids, begin=0, **where):
    """At most twice as far from float64 as transformers' own float32 logits for ids[:, begin:], plus their rounding.

    where: mask and positions; logits at padding do not count.
    """
    exact = copy.deepcopy(model).double()(ids, **where).logits[:, begin:]
    sdpa = model(ids, **where).logits[:, begin:]
    kept = where["attention_mask"][:, begin:].bool() if where else torch.ones(exact.shape[:2], dtype=torch.bool)
    assert (logits - exact)[kept].abs().max() <= 2 * (sdpa - exact)[kept].abs().max() + 1e-5


# ---- prefill and decode --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("gpt2", {}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("gpt2", {"scale_attn_weights": False}),
        ("gpt2", {"n_embd": 64, "n_head": 1}),
        *((model_type, {}) for model_type in GROUPED),
        ("llama", {"num_key_value_heads": 1}),
    ],
)
def test_prefill_and_decode_match_sdpa(model_type, config):
    model = tiny_model(model_type, **config)
    ours, attention = attached(model)
    ids = tokens(3, 20)
    assert_exact(ours(ids, use_cache=False).logits, model, ids)
    assert attention.calls == {"flash_attention": 2}

    attention.reset_calls()
    cache = KernelCache(attention, ours)
    parts = [ours(ids[:, :9], past_key_values=cache).logits]
    parts += [ours(ids[:, t : t + 1], past_key_values=cache).logits for t in range(9, 20)]
    assert_exact(torch.cat(parts, 1), model, ids)
    assert attention.calls == {"flash_attention": 2, "update_cache": 24, "decode_attention": 22}
    assert cache.get_seq_length() == 20 and cache.get_max_length() == 32

    cache.reset()
    assert cache.get_seq_length() == 0
    assert_exact(ours(ids, past_key_values=cache).logits, model, ids)


def test_a_prompt_of_one_token_is_a_prefill():
    model = tiny_model()
    ours, attention = attached(model)
    logits = ours(tokens(2, 1), past_key_values=KernelCache(attention, ours)).logits
    assert_exact(logits, model, tokens(2, 1))
    assert attention.calls == {"flash_attention": 2, "update_cache": 2}


@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_transformers_own_cache_decodes_through_our_kernel(model_type):
    model = tiny_model(model_type)
    ours, attention = attached(model)
    cache, ids = DynamicCache(), tokens(2, 6)
    ours(ids[:, :5], past_key_values=cache)
    logits = ours(ids[:, 5:], past_key_values=cache).logits
    assert_exact(logits, model, ids, begin=5)
    assert attention.calls == {"flash_attention": 2, "decode_attention": 2}


def test_our_cache_serves_transformers_own_attention():
    model, ids = tiny_model(), tokens(2, 6)
    cache = KernelCache(KernelAttention(TorchOps(), TorchOps()), model)
    model(ids[:, :5], past_key_values=cache)
    logits = model(ids[:, 5:], past_key_values=cache).logits
    assert_exact(logits, model, ids, begin=5)


@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
@pytest.mark.parametrize("ours_cache", [True, False])
def test_several_tokens_on_a_cache_that_is_not_empty(model_type, ours_cache):
    """As in a chat: a second turn, then decoding continues."""
    model = tiny_model(model_type)
    ours, attention = attached(model)
    cache, ids = KernelCache(attention, ours) if ours_cache else DynamicCache(), tokens(2, 14)
    parts = [ours(ids[:, a:b], past_key_values=cache).logits for a, b in ((0, 5), (5, 12), (12, 13), (13, 14))]
    assert_exact(torch.cat(parts, 1), model, ids)


def test_two_attentions_in_one_process_do_not_mix():
    model = tiny_model()
    first, first_attention = attached(model)
    _, second_attention = attached(model)
    first(tokens(1, 4), use_cache=False)
    assert first_attention.calls["flash_attention"] == 2 and not second_attention.calls


# ---- padding -------------------------------------------------------------------------------------

MASKS = {
    "left": padded(tokens(3, 9), 4, 9, 1),
    "right": padded(tokens(3, 9), 4, 9, 1, left=False),
    "with holes": (tokens(3, 9), torch.tensor([[0, 1, 1, 0, 1, 1, 0, 0, 1], [1] * 9, [0] * 4 + [1] * 4 + [0]])),
}


@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
@pytest.mark.parametrize("ours_cache", [True, False])
@pytest.mark.parametrize("first", MASKS)
@pytest.mark.parametrize("second", ["tokens", "no padding", *MASKS])
def test_padded_turns(model_type, ours_cache, first, second):
    """A padded prompt and single tokens, or turns of 9, 9, 1 and 2 tokens with padding also before a turn's end, on one
    cache; logits at padding do not count."""
    model = tiny_model(model_type)
    ours, attention = attached(model)
    if second == "tokens":
        more, turns = torch.ones(3, 3, dtype=torch.int64), [9, 1, 1, 1]
    else:
        more = MASKS[second][1] if second in MASKS else torch.ones(3, 9, dtype=torch.int64)
        more, turns = torch.cat([more, torch.tensor([[1, 1, 1], [0, 1, 1], [1, 1, 0]])], 1), [9, 9, 1, 2]
    mask, ids = torch.cat([MASKS[first][1], more], 1), tokens(3, sum(turns))
    where, parts, a = positions(mask), [], 0
    cache = KernelCache(attention, ours) if ours_cache else DynamicCache()
    for b in accumulate(turns):
        call = {"attention_mask": mask[:, :b], "position_ids": where[:, a:b]}
        parts.append(ours(ids[:, a:b], past_key_values=cache, **call).logits)
        a = b
    assert_exact(torch.cat(parts, 1), model, ids, attention_mask=mask, position_ids=where)
    if ours_cache:
        assert cache.layers[0].kv_cache.lengths.tolist() == mask.sum(-1).tolist()


@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
@pytest.mark.parametrize("kind", MASKS)
def test_generate_goes_on_from_where_a_padded_prompt_ends(model_type, kind):
    """The same tokens as eager attention, even if the last position, which gives the first token, is padding."""
    model = tiny_model(model_type)
    ours, attention = attached(model)
    ids, mask = MASKS[kind]
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    for cache in ({}, {"past_key_values": KernelCache(attention, ours)}):
        tokens_of = ours.generate(ids, attention_mask=mask, **GREEDY, **cache)
        assert torch.equal(tokens_of, eager.generate(ids, attention_mask=mask, **GREEDY))


@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_beam_search_and_lookup_of_the_prompt_on_transformers_own_cache(model_type):
    """Both rearrange a cache; the second also feeds several tokens at once and takes some of them back."""
    model = tiny_model(model_type)
    ours, _ = attached(model)
    ids, mask = MASKS["left"]
    beams = GREEDY | {"num_beams": 3, "attention_mask": mask}
    assert torch.equal(ours.generate(ids, **beams), model.generate(ids, **beams))
    assert torch.equal(
        ours.generate(ids[1:2], prompt_lookup_num_tokens=3, **GREEDY), model.generate(ids[1:2], **GREEDY)
    )


def test_a_cache_is_as_good_as_new_after_a_padded_batch():
    model = tiny_model()
    ours, attention = attached(model)
    cache, (ids, mask) = KernelCache(attention, ours), MASKS["left"]
    ours(ids, attention_mask=mask, past_key_values=cache)
    cache.reset()
    ids = tokens(3, 5)
    ours(ids[:, :4], past_key_values=cache)
    assert_exact(ours(ids[:, 4:], past_key_values=cache).logits, model, ids, begin=4)


def test_padding_that_comes_or_goes_is_refused():
    ours, attention = attached(tiny_model())
    ids, mask = MASKS["left"]
    one_more = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
    for first, then, words in ((mask, None, "was padded"), (None, one_more, "was not padded")):
        cache = KernelCache(attention, ours)
        ours(ids, attention_mask=first, past_key_values=cache)
        with pytest.raises(ValueError, match=words):
            ours(ids[:, :1], attention_mask=then, past_key_values=cache)
    cache = KernelCache(attention, ours)
    ours(ids, attention_mask=mask, past_key_values=cache)
    with pytest.raises(ValueError, match="was padded, and now come 2 tokens without padding for it"):
        ours(ids[:, :2], past_key_values=cache)


# ---- errors --------------------------------------------------------------------------------------


def test_unsupported_calls_are_refused_by_name():
    ours, attention = attached(tiny_model())
    ids = tokens(2, 6)
    with pytest.raises(ValueError, match=r"an attention mask of four dimensions .* register\(variant='tuned'\) does"):
        ours(ids, attention_mask=torch.zeros(2, 1, 6, 6))
    with pytest.raises(ValueError, match="packed"):
        ours(ids, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]), use_cache=False)
    with pytest.raises(ValueError, match=r"cache has 12 slots, .* leave cache_implementation out.*variant='tuned'"):
        ours.generate(ids, cache_implementation="static", **GREEDY | {"max_new_tokens": 7})
    with pytest.raises(ValueError, match="beam search"):
        ours.generate(ids, num_beams=2, past_key_values=KernelCache(attention, ours), max_new_tokens=3)
    with torch.enable_grad(), pytest.raises(ValueError, match=r"no backward pass .*register\(variant='tuned'\) does"):
        ours(ids)
    with pytest.raises(ValueError, match=r"dropout=0.1"):
        ours.train()(ids)


def call(attention, batch=1, heads=4, kv_heads=4, head_dim=8, value_head_dim=8, **others):
    """The attention function itself, as an architecture might call it."""
    query, key = torch.zeros(batch, heads, 3, head_dim), torch.zeros(batch, kv_heads, 3, head_dim)
    value = torch.zeros(batch, kv_heads, 3, value_head_dim)
    return attention.forward(torch.nn.Module(), query, key, value, None, **others)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"sliding_window": 2}, "a sliding window"),
        ({"softcap": 30.0}, "a cap on the scores"),
        ({"s_aux": torch.zeros(4)}, "attention sinks"),
        ({"position_bias": torch.zeros(1)}, "a position bias"),
        ({"is_causal": False}, "not causal"),
        ({"value_head_dim": 4}, r"values of head_dim 4 with queries of 8 \(MLA\)"),
        ({"head_dim": 129, "value_head_dim": 129}, "head_dim 129: at most 128"),
        ({"kv_heads": 3}, "4 query heads on 3 key heads"),
    ],
)
def test_what_other_architectures_ask_of_their_attention_is_refused(asked, words):
    attention = KernelAttention(TorchOps(), TorchOps())
    assert call(attention)[0].shape == (1, 3, 4, 8)
    with pytest.raises(ValueError, match=f"do not support .*{words}"):
        call(attention, **asked)


def test_a_full_cache_is_refused_and_keeps_its_tokens():
    ours, attention = attached(tiny_model())
    cache, ids = KernelCache(attention, ours, max_seq_len=6), tokens(1, 6)
    ours(ids, past_key_values=cache)
    with pytest.raises(ValueError, match="full"):
        ours(ids[:, :1], past_key_values=cache)
    assert cache.get_seq_length() == 6


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_models_that_work_are_accepted(model_type):
    check_config(tiny_config(model_type))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (GPT2Config(n_embd=1024, n_head=4), ["head_dim is 256", "at most 128"]),
        (GPT2Config(add_cross_attention=True), ["add_cross_attention"]),
        (tiny_config("llama", head_dim=192), ["head_dim is 192"]),
        (tiny_config("mistral", sliding_window=16), ["sliding_window is 16", "'full_attention' in every layer"]),
        (
            tiny_config("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1),
            ["'sliding_attention'", "sliding_window is 8"],
        ),
        (GemmaConfig(), ["model_type is 'gemma'", "'gpt2', 'llama'"]),
        (DeepseekV3Config(), ["model_type is 'deepseek_v3'", "MLA"]),
    ],
)
def test_other_models_are_refused(config, words):
    with pytest.raises(ValueError) as error:
        check_config(config)
    assert all(word in str(error.value) for word in words), error.value


def test_an_unknown_variant_is_refused_before_anything_is_built():
    with pytest.raises(ValueError, match="variant is 'fast'; allowed: 'student', 'solution', 'tuned'"):
        register("fast")


# ---- plain transformers on the real kernels --------------------------------------------------------


@pytest.fixture(scope="session", params=["solution", "tuned"])
def course(request, backend):
    """register() for this variant."""
    return register(request.param, backend)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_from_pretrained_and_generate_give_sdpas_text(course, tmp_path, model_type):
    """Equal prompts, then prompts of different lengths; first transformers' cache, then ours."""
    tiny_model(model_type).save_pretrained(tmp_path)
    ours, reference = (
        AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=name).to(course.device)
        for name in (kernel_attention.NAME, "sdpa")
    )
    for ids, mask in ((tokens(3, 9), torch.ones(3, 9, dtype=torch.int64)), MASKS["left"]):
        ids, how = ids.to(course.device), GREEDY | {"attention_mask": mask.to(course.device)}
        expected = reference.generate(ids, **how)
        for cache in ({}, {"past_key_values": KernelCache(course, ours)}):
            course.reset_calls()
            assert torch.equal(ours.generate(ids, **how, **cache), expected)
            assert course.calls["flash_attention"] == 2 and course.calls["decode_attention"] == 2 * 11


@pytest.mark.parametrize("model_type", [*MODEL_TYPES, "windows", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("kind", MASKS)
def test_chunks_and_second_turns_give_transformers_text(course, model_type, kind):
    """prefill_chunk_size, then a turn of three tokens, one of them padding, after generation."""
    if not course.tuned and model_type not in MODEL_TYPES:
        pytest.skip("the taught kernels have no windows, caps and sinks")
    if model_type in ("gemma2", "gpt_oss") and kind == "right":
        pytest.skip("where a window holds nothing but padding, eager attention gives the mean of it")
    if model_type in MODEL_TYPES:
        reference = tiny_model(model_type).to(course.device)
    elif model_type == "windows":
        reference = tiny_model("mistral", sliding_window=5).to(course.device)
    else:
        reference = option_model(model_type, course.device)
    ours = copy.deepcopy(reference)
    ours.set_attn_implementation(kernel_attention.NAME)
    ids, mask = (x.to(course.device) for x in MASKS[kind])
    more = torch.tensor([[1, 1, 1], [0, 1, 1], [1, 1, 1]], device=course.device)
    results = []
    for model, cache in ((reference, DynamicCache), (ours, DynamicCache), (ours, lambda: KernelCache(course, ours))):
        how = GREEDY | {"past_key_values": cache(), "max_new_tokens": 4}
        turns = [model.generate(ids, attention_mask=mask, prefill_chunk_size=4, **how)]
        seen = torch.cat([mask, torch.ones_like(turns[0][:, 9:]), more], 1)
        turns.append(model.generate(torch.cat([turns[0], ids[:, -3:]], 1), attention_mask=seen, **how))
        results.append(turns)
    for found in results[1:]:
        assert torch.equal(found[0], results[0][0]) and torch.equal(found[1], results[0][1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_16_bit_models(course, model_type, dtype):
    """At most twice sdpa's own error from float64 in this dtype; the tuned cache is in the model's dtype."""
    model = tiny_model(model_type).to(course.device)
    ids, mask = (x.to(course.device) for x in MASKS["left"])
    where = {"attention_mask": mask, "position_ids": positions(mask)}
    exact = copy.deepcopy(model).double()(ids, **where).logits
    model = model.to(dtype)
    ours = course.attach(copy.deepcopy(model))
    cache = KernelCache(course, ours)
    first = ours(
        ids[:, :8], past_key_values=cache, attention_mask=mask[:, :8], position_ids=where["position_ids"][:, :8]
    )
    second = ours(ids[:, 8:], past_key_values=cache, attention_mask=mask, position_ids=where["position_ids"][:, 8:])
    found = torch.cat([first.logits, second.logits], 1)
    assert found.dtype == dtype and cache.layers[0].kv_cache.k.dtype == (dtype if course.tuned else torch.float32)
    kept = mask.bool()
    error, same = ((x.double() - exact)[kept].norm() for x in (found, model(ids, **where).logits))
    assert error <= 2 * same


def test_the_tuned_kernels_take_any_mask(backend):
    course = register("tuned", backend)
    model = tiny_model("llama").to(course.device)
    ours = course.attach(copy.deepcopy(model))
    ids = tokens(2, 8).to(course.device)
    packed = {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]], device=course.device), "use_cache": False}
    torch.testing.assert_close(ours(ids, **packed).logits, model(ids, **packed).logits, rtol=1e-3, atol=1e-3)
    prefix = torch.ones(1, 1, 8, 8, dtype=torch.bool, device=course.device).tril()
    prefix[..., :3] = True  # the first three tokens see each other
    torch.testing.assert_close(
        ours(ids, attention_mask=prefix).logits, model(ids, attention_mask=prefix).logits, rtol=1e-3, atol=1e-3
    )


def in_place_of_sdpa(model):
    """The same model twice: with the course's attention, and with sdpa."""
    ours, theirs = copy.deepcopy(model), copy.deepcopy(model)
    ours.set_attn_implementation(kernel_attention.NAME)
    theirs.set_attn_implementation("sdpa")
    return ours, theirs


@pytest.fixture
def tuned(backend):
    return register("tuned", backend)


@pytest.fixture
def chosen(monkeypatch) -> list[str]:
    """The folders of the fast kernels that calls used, in order."""
    rooms, launched = [], attention_kernels._launched
    monkeypatch.setattr(attention_kernels, "_launched", lambda *call: rooms.append(call[0]) or launched(*call))
    return rooms


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16], ids=str)
def test_sliding_windows(tuned, chosen, dtype):
    """Mistral with a window of 5: prompts with and without padding, its own and a static cache, also decoding."""
    model = tiny_model("mistral", sliding_window=5).to(tuned.device, dtype)
    ours, theirs = in_place_of_sdpa(model)
    ids = tokens(2, 12).to(tuned.device)
    tuned.reset_calls()
    chosen.clear()
    found, expected = ours(ids).logits, theirs(ids).logits
    assert tuned.calls == {"flash_attention": 2}
    assert chosen == ["sparse" if dtype == torch.bfloat16 else "flash"] * 2
    assert (found - expected).norm() <= (0.03 if dtype == torch.bfloat16 else 1e-5) * expected.norm()
    if dtype == torch.bfloat16:
        return
    everything, padding = torch.ones_like(ids), torch.ones_like(ids)
    padding[0, :3] = 0
    for mask in (everything, padding):
        for cache in ({}, {"cache_implementation": "static"}):
            how = GREEDY | {"attention_mask": mask} | cache
            assert torch.equal(ours.generate(ids, **how), theirs.generate(ids, **how))


def test_a_static_cache(tuned):
    ours, theirs = in_place_of_sdpa(tiny_model("llama").to(tuned.device))
    ids, mask = (x.to(tuned.device) for x in MASKS["left"])
    how = GREEDY | {"attention_mask": mask, "cache_implementation": "static"}
    assert torch.equal(ours.generate(ids, **how), theirs.generate(ids, **how))


def test_an_encoder_attends_both_ways(tuned):
    """BERT, with and without padding; results at padding do not count."""
    sizes = {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    model = BertModel(BertConfig(**sizes, vocab_size=50, initializer_range=0.3)).eval().to(tuned.device)
    ours, theirs = in_place_of_sdpa(model)
    ids, mask = (x.to(tuned.device) for x in MASKS["right"])
    for given in (torch.ones_like(mask), mask):
        tuned.reset_calls()
        found, expected = (one(ids, attention_mask=given).last_hidden_state for one in (ours, theirs))
        assert tuned.calls == {"flash_attention": 2}
        torch.testing.assert_close(found[given.bool()], expected[given.bool()], rtol=1e-4, atol=1e-4)


def tiny_t5(tuned, **config) -> T5ForConditionalGeneration:
    """With a position bias that matters."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0, **config)).to(tuned.device)
    for stack in (model.encoder, model.decoder):
        torch.nn.init.normal_(stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight, std=3.0)
    return model


def t5_pair(model: T5ForConditionalGeneration) -> tuple:
    """The model with the kernels and a copy with transformers' own eager attention."""
    theirs = copy.deepcopy(model)
    for part in ("", "encoder", "decoder"):  # transformers 5.17 does not set these two through the whole model
        theirs.get_submodule(part).set_attn_implementation("eager")
        model.get_submodule(part).set_attn_implementation(kernel_attention.NAME)
    return model, theirs


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["left", "right", "with holes"])
def test_t5(tuned, kind):
    """Its position bias is an added mask for the kernels: encoder, decoder and cross attention, and generate()
    with a cache."""
    ours, theirs = t5_pair(tiny_t5(tuned).eval())
    ids, mask = (x.to(tuned.device) for x in MASKS[kind])
    answer = tokens(3, 7).to(tuned.device)
    tuned.reset_calls()
    found, expected = (one(ids, attention_mask=mask, labels=answer).logits for one in (ours, theirs))
    assert tuned.calls == {"flash_attention": 6}
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for stack in (ours.encoder, ours.decoder):
        torch.nn.init.zeros_(stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight)
    without = ours(ids, attention_mask=mask, labels=answer).logits
    assert float((without - found).abs().max()) > 1e-2  # the bias has an effect

    ours, theirs = t5_pair(tiny_t5(tuned).eval())
    how = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False}
    assert torch.equal(ours.generate(ids, **how), theirs.generate(ids, **how))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_t5_is_trained_around_its_bias(tuned, chosen, dropout):
    """Every parameter's gradient compared with eager's while the bias is frozen; the bias's own gradient is refused."""
    model = tiny_t5(tuned, dropout_rate=dropout).train()
    ids, mask = (x.to(tuned.device) for x in MASKS["right"])
    answer = tokens(3, 7).to(tuned.device)
    ours, theirs = t5_pair(model)
    with torch.enable_grad(), pytest.raises(ValueError, match=r"a gradient of the position bias .*requires_grad_"):
        ours(ids, attention_mask=mask, labels=answer)
    gradients = []
    for one in (ours, theirs):
        for stack in (one.encoder, one.decoder):
            stack.block[0].layer[0].SelfAttention.relative_attention_bias.requires_grad_(False)
        moving = [x for x in one.parameters() if x.requires_grad]
        with torch.enable_grad():
            loss = one(ids, attention_mask=mask, labels=answer).loss
            gradients.append((loss, *torch.autograd.grad(loss, moving)))
    if dropout:  # the kernels' own dropout draws other numbers
        assert "flash" in chosen and all(bool(x.isfinite().all()) for x in gradients[0])
        return
    for x, y in zip(*gradients, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


def test_a_position_bias_and_every_kind_of_mask(tuned):
    """Tensors of either kind, padding, the causal mask or none, aligned to the lower right with a cache; in float64."""
    generator = torch.Generator().manual_seed(3)
    query, key, value, bias = (
        torch.randn(2, 4, *sizes, generator=generator).to(tuned.device) for sizes in ((3, 8), (5, 8), (5, 8), (3, 5))
    )
    seen = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]], device=tuned.device).bool()[:, None, None]
    causal = torch.ones(3, 5, dtype=torch.bool, device=tuned.device).tril(2)
    hidden = torch.zeros(2, 1, 1, 5, device=tuned.device).masked_fill(~seen, -torch.inf)
    given = {
        "none": (None, False, torch.ones_like(causal)),
        "causal": (None, True, causal),
        "bool": (seen, True, seen),
        "float": (hidden, True, seen),
        "padding": (Padding(seen[:, 0, 0]), True, causal & seen),
    }
    for mask, is_causal, expected in given.values():
        out, _ = tuned.forward(torch.nn.Module(), query, key, value, mask, is_causal=is_causal, position_bias=bias[:1])
        scores = query.double() @ key.double().mT * 8**-0.5 + bias[:1].double()
        right = scores.masked_fill(~expected, -torch.inf).softmax(-1) @ value.double()
        torch.testing.assert_close(out.transpose(1, 2).double(), right, rtol=1e-5, atol=1e-5)
    packed = {"cu_seq_lens_q": torch.tensor([0, 3]), "cu_seq_lens_k": torch.tensor([0, 5])}
    with pytest.raises(ValueError, match=r"a position bias .* with packed sequences"):
        tuned.forward(torch.nn.Module(), query, key, value, None, position_bias=bias, **packed)


def small(model_type: str, **config):
    """Without dropout, in training mode."""
    config |= {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0} if model_type == "gpt2" else {}
    return tiny_model(model_type, **config).train()


def assert_same_training(device, *models) -> None:
    """Loss and every parameter's gradient, with padding; padding predicts no token."""
    ids, mask = (x.to(device) for x in MASKS["right"])
    results = []
    with torch.enable_grad():
        for one in models:
            loss = one.train()(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
            results.append((loss, *torch.autograd.grad(loss, list(one.parameters()), allow_unused=True)))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=1e-5)
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


def test_training_computes_the_forward_pass_once(tuned):
    """A layer launches its attention and its gradients once each."""
    model = small("gpt2").to(tuned.device)
    model.set_attn_implementation(kernel_attention.NAME)
    launched = []

    class Launches(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.name().split("::")[1].startswith("flash_attention"):
                launched.append(function.name().split("::")[1])
            return function(*args, **kwargs or {})

    with Launches(), torch.enable_grad():
        model(tokens(2, 9).to(tuned.device), use_cache=False).logits.sum().backward()
    assert launched == ["flash_attention_forward"] * 2 + ["flash_attention_backward"] * 2


def test_training_with_dropout(tuned):
    """The generator determines what is dropped: the same state, the same gradients; eval() drops nothing."""
    model = tiny_model("gpt2", attn_pdrop=0.3, resid_pdrop=0.0, embd_pdrop=0.0).to(tuned.device).train()
    model.set_attn_implementation(kernel_attention.NAME)
    ids = tokens(2, 9).to(tuned.device)
    results = []
    with torch.enable_grad():
        for seed in (5, 5, 6):
            torch.manual_seed(seed)
            loss = model(ids, labels=ids).loss
            results.append((loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))))
    assert all(torch.equal(x, y) for x, y in zip(results[0], results[1], strict=True))
    assert not torch.equal(results[0][0], results[2][0])
    tuned.reset_calls()
    assert torch.equal(model.eval()(ids).logits, model(ids).logits)
    assert tuned.calls == {"flash_attention": 4}


def option_model(model_type: str, device, **config):
    """A tiny Gemma 2 (caps, windows of 5 in every second layer) or gpt-oss (sinks, windows), in eager attention, the
    only one in transformers that supports their options without a GPU."""
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "initializer_range": 0.3}
    sizes = {
        "vocab_size": 50,
        "hidden_size": 64,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "sliding_window": 5,
    }
    own = {
        "gemma2": (Gemma2Config, {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16}),
        "gpt_oss": (GptOssConfig, {"num_local_experts": 2, "num_experts_per_tok": 1}),
    }
    made, more = own[model_type]
    torch.manual_seed(0)
    config = made(**special | sizes | more | config)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().to(device)


def test_windows_to_either_side_in_packed_sequences(tuned):
    """As in encoders (ModernBERT): a token sees window - 1 others before and after it."""
    begins = torch.tensor([0, 4, 16], dtype=torch.int32, device=tuned.device)
    query, key, value = (torch.randn(1, heads, 16, 8, device=tuned.device) for heads in (4, 2, 2))
    layer = torch.nn.Module()
    layer.is_causal = False
    given = {"cu_seq_lens_q": begins, "cu_seq_lens_k": begins, "sliding_window": 3}
    found = tuned.forward(layer, query, key, value, None, **given)[0].transpose(1, 2)
    i = torch.arange(16, device=tuned.device)
    sequence = (i >= 4).int()
    seen = (sequence[:, None] == sequence) & ((i[:, None] - i).abs() < 3)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, seen, enable_gqa=True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model_type", ["gemma2", "gpt_oss"])
def test_caps_and_sinks(tuned, chosen, model_type):
    """Logits, text generated with and without padding, and every parameter's gradient, including sinks."""
    model = option_model(model_type, tuned.device)
    ours = copy.deepcopy(model)
    ours.set_attn_implementation(kernel_attention.NAME)
    ids, mask = (x.to(tuned.device) for x in MASKS["left"])
    tuned.reset_calls()
    torch.testing.assert_close(ours(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)
    assert tuned.calls == {"flash_attention": 2} and chosen == ["flash"] * 2
    for given in (torch.ones_like(mask), mask):
        for cache in ({}, {"cache_implementation": "static"}):
            how = GREEDY | {"attention_mask": given, "max_new_tokens": 6} | cache
            assert torch.equal(ours.generate(ids, **how), model.generate(ids, **how))
    assert_same_training(tuned.device, ours, model)


def test_a_head_dim_of_256(tuned):
    """As in Gemma 2's smaller models, with and without the cap."""
    for config in ({}, {"attn_logit_softcapping": None}):
        model = option_model("gemma2", tuned.device, head_dim=256, query_pre_attn_scalar=256, **config)
        ours = copy.deepcopy(model)
        ours.set_attn_implementation(kernel_attention.NAME)
        ids = tokens(2, 9).to(tuned.device)
        torch.testing.assert_close(ours(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_packed_sequences_without_a_mask(tuned, model_type):
    """Each sequence gives what the model gives for it alone; also in training: every parameter's gradient of the loss.
    Mistral has sliding windows."""
    model = tiny_model(model_type, **({"sliding_window": 5} if model_type == "mistral" else {})).to(tuned.device)
    ours, _ = in_place_of_sdpa(model)
    lengths = [3, 9, 1, 7]
    parts = [tokens(1, length, seed=length).to(tuned.device) for length in lengths]
    begins = torch.tensor([0, *lengths], device=tuned.device).cumsum(0)
    packed = {
        "input_ids": torch.cat(parts, 1),
        "position_ids": torch.cat([torch.arange(length, device=tuned.device) for length in lengths])[None],
        "use_cache": False,
        "cu_seq_lens_q": begins.int(),
        "cu_seq_lens_k": begins.int(),
        "max_length_q": 9,
        "max_length_k": 9,
    }
    tuned.reset_calls()
    results = []
    with torch.enable_grad():
        logits = ours(**packed).logits
        assert tuned.calls == {"attention_varlen": 2}
        results.append((logits, *torch.autograd.grad(logits.square().mean(), list(ours.parameters()))))
        logits = torch.cat([model(part).logits for part in parts], 1)
        results.append((logits, *torch.autograd.grad(logits.square().mean(), list(model.parameters()))))
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match=r"packed sequences \(cu_seq_lens_q\) in a batch of 2: it must be 1"):
        call(tuned, batch=2, cu_seq_lens_q=begins, cu_seq_lens_k=begins)
    with pytest.raises(ValueError, match=r"packed sequences \(cu_seq_lens_q\) with these variants: register"):
        call(KernelAttention(TorchOps(), TorchOps()), cu_seq_lens_q=begins, cu_seq_lens_k=begins)


@pytest.mark.parametrize(
    ("asked", "words"),
    [({"softcap": 3.0}, "softcap"), ({"s_aux": torch.ones(4)}, "sinks"), ({"dropout": 0.1}, "dropout")],
)
def test_options_do_not_follow_a_prompt_whose_padding_was_dropped(tuned, asked, words):
    ours = tuned.attach(tiny_model("llama"))
    ids, mask = (x.to(tuned.device) for x in MASKS["left"])
    cache = KernelCache(tuned, ours)
    ours(ids, attention_mask=mask, past_key_values=cache)
    kv_cache = cache.layers[0].kv_cache
    keys, values = (x[:, :, : kv_cache.seq_len] for x in (kv_cache.k, kv_cache.v))
    asked = {name: x.to(tuned.device) if isinstance(x, torch.Tensor) else x for name, x in asked.items()}
    query = torch.zeros(keys.size(0), 4, 1, keys.size(3), device=tuned.device)
    with pytest.raises(ValueError, match=f"do not support {words} after a padded prompt in a KernelCache"):
        tuned.forward(torch.nn.Module(), query, keys, values, None, **asked)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "masked"),
    [
        *(("gpt2", masked) for masked in ("left", "", "no padding", "right")),
        ("llama", "left"),
        *(("mistral", masked) for masked in ("", "left", "right")),  # windows
    ],
)
def test_a_whole_model_compiled_without_graph_breaks(tuned, model_type, masked):
    """fullgraph: one graph from tokens to logits, and one for the gradients, compared with the uncompiled model and
    transformers' own attention; a graph traced with one padding works for another."""
    model = small(model_type, **({"sliding_window": 5} if model_type == "mistral" else {})).to(tuned.device)
    sdpa = copy.deepcopy(model)
    model.set_attn_implementation(kernel_attention.NAME)
    ids = tokens(2, 9).to(tuned.device)
    masks = {
        "": [None],
        "no padding": [torch.ones_like(ids)],
        "left": [padded(ids.cpu(), n, 9)[1].to(tuned.device) for n in (4, 7)],
        "right": [padded(ids.cpu(), n, 9, left=False)[1].to(tuned.device) for n in (4, 7)],
    }[masked]
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for mask in masks:
        seen = torch.ones_like(ids) if mask is None else mask
        results = []
        with torch.enable_grad():
            for one, owner in ((sdpa, sdpa), (model, model), (compiled, model)):
                logits = one(ids, attention_mask=mask, use_cache=False).logits[seen.bool()]
                results.append((logits, *torch.autograd.grad(logits.square().mean(), list(owner.parameters()))))
        for expected, *found in zip(*results, strict=True):
            for x in found:
                torch.testing.assert_close(x, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_kernel_cache_under_compile_is_refused_or_left_to_eager(tuned):
    """A graph could not know whether the prompt was padded. Without fullgraph PyTorch runs these calls eagerly."""
    model = tuned.attach(small("llama").eval())
    ids, mask = (x.to(tuned.device) for x in MASKS["left"])
    with torch.no_grad():
        expected = model(ids, attention_mask=mask, past_key_values=KernelCache(tuned, model)).logits
        torch._dynamo.reset()
        with pytest.raises(Exception, match=r"KernelCache is not supported under torch\.compile"):
            torch.compile(model, fullgraph=True, backend="eager")(ids, past_key_values=KernelCache(tuned, model))
        torch._dynamo.reset()
        cache = KernelCache(tuned, model)
        found = torch.compile(model, backend="eager")(ids, attention_mask=mask, past_key_values=cache).logits
    kept = mask.bool()
    torch.testing.assert_close(found[kept], expected[kept], rtol=1e-4, atol=1e-5)
    keys, values = cache.layers[0].keys, cache.layers[0].values
    query = torch.zeros(keys.size(0), 4, 1, keys.size(3), device=tuned.device)
    attend = torch.compile(tuned.forward, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=r"do not support a KernelCache under torch\.compile"):
        attend(torch.nn.Module(), query, keys, values, None)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_export(course, model_type):
    """One graph gives the model's logits; the taught kernels refuse it with a clear message."""
    model = tiny_model(model_type).to(course.device)
    model.set_attn_implementation(kernel_attention.NAME)
    ids, how = tokens(2, 9).to(course.device), {"use_cache": False}
    if not course.tuned:
        with pytest.raises(ValueError, match=r"do not support torch.export.*register\(variant='tuned'\) does"):
            torch.export.export(model, (ids,), how)
        return
    program = torch.export.export(model, (ids,), how)
    torch.testing.assert_close(program.module()(ids, **how).logits, model(ids, **how).logits, rtol=1e-5, atol=1e-5)

"""Task 7: the generation loop, the command lines, GPT-2 on the real kernels.

The oracle is transformers' own sdpa attention with DynamicCache. `TorchOps` replaces the kernels where
only the Python around them is tested, and carries the planted mistakes.
"""

import copy
import os
import re
import time
from types import SimpleNamespace

import pytest
import torch
from forked_python import run_python
from torch_operators import TorchOps, attached, tiny_model, torch_kernels
from transformers import DynamicCache, GPT2Config

from common.cli import test as command
from common.cli.test import test_main
from common.kernels.gpt2.engine_kernels import EngineKernels
from common.kernels.gpt2.sampling import SEQUENCE_STRIDE
from common.testing import results
from task7.cases import model as texts
from task7.front_door.cache import KernelCache
from task7.front_door.kernel_attention import KernelAttention
from task7.test import TEST
from task7.tools import compare, inference, models, session
from task7.tools.generation import generate
from task7.tools.options import parse
from task7.tools.perplexity import held_out_sequences, perplexity
from task7.tools.streaming import TextStream
from task7.tools.writers import LeanWriter, reference_writer

pytestmark = pytest.mark.usefixtures("one_thread_without_gradients")

# ---- the generation loop -------------------------------------------------------------------------


class Scripted:
    """A model whose next token is always the last one plus 1, to isolate the loop's own behavior."""

    config = SimpleNamespace(max_position_embeddings=20)
    device = torch.device("cpu")

    def __init__(self):
        self.seen, self.where = [], []

    def __call__(self, new, past_key_values, use_cache, logits_to_keep, **where):
        self.seen.append((new.tolist(), past_key_values))
        self.where.append(where)
        return SimpleNamespace(logits=torch.nn.functional.one_hot(new[:, -1:] + 1, 100).float())


def test_loop_prefills_once_then_decodes_one_token_at_a_time():
    model, cache, streamed = Scripted(), object(), []
    result = generate(model, [[3, 4, 5]], cache, max_new_tokens=4, on_token=lambda *new: streamed.append(new))
    assert result.tokens == [[6, 7, 8, 9]] and streamed == [(0, 6), (0, 7), (0, 8), (0, 9)]
    assert model.seen == [([[3, 4, 5]], cache), ([[6]], cache), ([[7]], cache), ([[8]], cache)]
    assert result.stopped_by == ["max_new_tokens"]
    assert result.ttft_ms > 0 and len(result.tbt_ms) == 3 and result.tokens_per_s > 0


def test_loop_stops_at_the_stop_token_without_returning_it():
    result = generate(Scripted(), [[3]], None, max_new_tokens=9, stop_token=6)
    assert result.tokens == [[4, 5]] and result.stopped_by == ["end of text"] and len(result.tbt_ms) == 2
    first = generate(Scripted(), [[5]], None, max_new_tokens=9, stop_token=6)
    assert first.tokens == [[]] and first.tbt_ms == []


def test_sequences_of_a_batch_stop_one_by_one():
    streamed = []
    how = {"max_new_tokens": 5, "stop_token": 9, "on_token": lambda *new: streamed.append(new)}
    result = generate(Scripted(), [[6], [2], [8]], None, **how)
    assert result.tokens == [[7, 8], [3, 4, 5, 6, 7], []]
    assert result.stopped_by == ["end of text", "max_new_tokens", "end of text"]
    assert streamed == [(0, 7), (1, 3), (0, 8), (1, 4), (1, 5), (1, 6), (1, 7)]
    short = generate(Scripted(), [[6], [8]], None, max_new_tokens=9, stop_token=9)
    assert len(short.tbt_ms) == 2, "the loop ends with its last sequence"


def test_prompts_of_different_lengths_are_padded_on_the_left():
    model = Scripted()
    generate(model, [[3, 4, 5], [7]], None, max_new_tokens=3)
    assert [new for new, _ in model.seen] == [[[3, 4, 5], [0, 0, 7]], [[6], [8]], [[7], [9]]]
    masks = [[[1, 1, 1], [0, 0, 1]], [[1, 1, 1, 1], [0, 0, 1, 1]], [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]]
    assert [where["attention_mask"].tolist() for where in model.where] == masks
    positions = [[[0, 1, 2], [0, 0, 0]], [[3], [1]], [[4], [2]]]
    assert [where["position_ids"].tolist() for where in model.where] == positions


@pytest.mark.parametrize("how", [{}, {"temperature": 1.0, "top_k": 20, "top_p": 0.95, "seed": 3}])
def test_a_batch_writes_what_each_prompt_does_alone(how):
    """Greedy, and sampled, where sequence i has its own seed. With our cache and attention, and with transformers'."""
    model, prompts = tiny_model(eos_token_id=None), [[5, 6, 7, 8, 9], [3], [11, 12, 13]]
    ours, attention = attached(model)
    caches = {ours: lambda: KernelCache(attention, ours), model: DynamicCache}
    for which, new_cache in caches.items():
        together = generate(which, prompts, new_cache(), max_new_tokens=10, **how).tokens
        for i, prompt in enumerate(prompts):
            own = how | {"seed": (how["seed"] + i * SEQUENCE_STRIDE) % 2**63} if how else {}
            assert generate(model, [prompt], DynamicCache(), max_new_tokens=10, **own).tokens == [together[i]]


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"max_new_tokens": 0}, ["max_new_tokens is 0", "1 or more"]),
        ({"max_new_tokens": 19}, ["2 tokens", "max_new_tokens is 19", "context is 20", "at most 18"]),
        ({"prompts": [[1], [1] * 20]}, ["20 tokens", "context is 20", "a prompt of at most 19"]),
        ({"prompts": [[]]}, ["0 tokens"]),
        ({"prompts": []}, ["prompts is []", "one prompt or more"]),
        ({"temperature": -0.5}, ["temperature is -0.5", "0 (greedy)"]),
        ({"temperature": float("nan")}, ["temperature is nan"]),
        ({"top_k": 0}, ["top_k is 0", "1 or more"]),
        ({"top_p": 0.0}, ["top_p is 0.0", "more than 0"]),
        ({"top_p": 1.5}, ["top_p is 1.5", "at most 1"]),
    ],
)
def test_loop_refuses_wrong_requests(wrong, words):
    request = {"prompts": [[1, 2]], "cache": None, "max_new_tokens": 3} | wrong
    with pytest.raises(ValueError) as error:
        generate(Scripted(), **request)
    assert all(word in str(error.value) for word in words)


def test_loop_fills_the_context_to_the_last_token():
    assert len(generate(Scripted(), [[1, 2]], None, max_new_tokens=18).tokens[0]) == 18
    model, attention = attached(tiny_model())
    assert len(generate(model, [[1, 2]], KernelCache(attention, model, 32), max_new_tokens=30).tokens[0]) == 30


def test_greedy_is_deterministic_and_sampling_follows_the_seed():
    model, attention = attached(tiny_model(initializer_range=0.05))

    def run(**how):
        return generate(model, [[1, 2, 3]], KernelCache(attention, model), max_new_tokens=20, **how).tokens

    assert run() == run(seed=7)
    before = torch.get_rng_state()
    assert run(temperature=1.0, seed=5) == run(temperature=1.0, seed=5) != run(temperature=1.0, seed=6)
    assert torch.equal(before, torch.get_rng_state())  # the loop has its own generator
    assert run(temperature=1.0, top_k=1, seed=5) == run() == run(temperature=1.0, top_p=1e-6, seed=5)
    assert run(temperature=1e-30, seed=5) == run()


# ---- streaming -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    return models.load(str(models.STORYTELLER), local=True)[0]


@pytest.mark.parametrize(
    "text",
    [
        "Once upon a time, there was a cat.",
        "na\u00efve caf\u00e9",
        "\u65e5\u672c\u8a9e \u6f22\u5b57\u6f22\u5b57",
        "a \U0001f642\U0001f468\u200d\U0001f469 b",
        "\U0001f642",
        "two  spaces\n\nand lines , x",
        "a\ufffdb",
        "",
    ],
)
def test_stream_shows_only_whole_characters(tokenizer, text):
    pieces, ids = [], tokenizer(text).input_ids
    stream = TextStream(tokenizer, pieces.append)
    for token in ids:
        stream.put(token)
    stream.close()
    assert "".join(pieces) == text
    assert all(pieces) and ("\ufffd" in text or not any("\ufffd" in piece for piece in pieces))


def test_stream_shows_complete_text_at_once_and_a_broken_end_at_close(tokenizer):
    pieces = []
    stream = TextStream(tokenizer, pieces.append)
    ids = tokenizer("ab\U0001f642").input_ids
    assert len(ids) >= 4  # the emoji takes several tokens
    for token in ids[:-1]:
        stream.put(token)
    assert pieces and "".join(pieces) == "ab"
    stream.close()
    assert re.fullmatch("ab\ufffd+", "".join(pieces))


# ---- the command lines ---------------------------------------------------------------------------


@pytest.fixture
def no_kernels(monkeypatch):
    """Command lines run on TorchOps. Returns the list of operators; replace its items to plant others."""
    ops = [TorchOps(), TorchOps(), TorchOps()]
    monkeypatch.setattr(session, "load_kernels", lambda *args: ops[:2])
    for user in (session, texts):
        monkeypatch.setattr(user, "load_engine_kernels", lambda *args: torch_kernels(*ops))
    monkeypatch.setattr("common.cli.workers.load", lambda request: ops[2])
    for user in (session, command):
        monkeypatch.setattr(user, "say_backend", lambda *args: None)
    monkeypatch.setattr(session, "engine_of", lambda options: options.engine or "transformers")
    monkeypatch.setenv("COLUMNS", "200")
    return ops


def story(text):
    return text[text.index("Once upon") : text.index("\u250c")]


def test_both_command_lines_tell_the_same_story(no_kernels, capsys):
    for options in (
        ["--max-new-tokens", "12"],
        ["--max-new-tokens", "12", "--temperature", "0.8", "--top-k", "40", "--top-p", "0.9", "--seed", "3"],
    ):
        assert inference.main(options) == 0
        ours = capsys.readouterr().out
        assert inference.main([*options, "--engine", "lean"]) == 0
        lean = capsys.readouterr().out
        assert inference.main([*options, "--backend", "simulator"], reference=True) == 0
        reference = capsys.readouterr().out
        assert story(ours) == story(lean) == story(reference)
        assert "lean: a step is one kernel after another" in lean
        assert "task 6 decode_attention and update_cache: the reference solution's" in lean
        assert "task 7 layernorm and bias_gelu: the reference solution's" in lean
        for words in (
            "TTFT",
            "TBT",
            "tokens/s",
            "flash_attention, yours: 6 ",
            "update_cache, yours: 72",
            "decode_attention, yours: 66",
            "PyTorch's, not task 7's: --engine lean runs those",
        ):
            assert words in ours
        assert "sdpa" in reference and "flash_attention" not in reference


def test_the_default_in_the_simulator_runs_task_7_where_it_is_filled(monkeypatch):
    monkeypatch.setattr(session, "is_filled", lambda task: task == "task7")
    chosen = {}
    for arguments in ("", "--solution", "--variant tuned", "--engine transformers"):
        chosen[arguments] = session.engine_of(parse(["--backend", "simulator", *arguments.split()]))
    assert chosen == dict.fromkeys(chosen, "transformers") | {"": "lean"}
    monkeypatch.setattr(session, "is_filled", lambda task: False)
    assert session.engine_of(parse(["--backend", "simulator"])) == "transformers"


def test_an_empty_prompt_starts_a_text(no_kernels, capsys):
    assert inference.main(["--prompt", "", "--max-new-tokens", "4"]) == 0
    assert "Once upon a time" in capsys.readouterr().out


@pytest.mark.parametrize("engine", ["transformers", "lean"])
def test_several_prompts_are_a_batch_and_written_one_after_the_other(no_kernels, capsys, engine):
    prompts = ["--engine", engine, "--prompt", "The old dragon", "--prompt", "Ben and his dog", "--max-new-tokens", "6"]
    texts = []
    for chosen in (prompts, prompts[:4] + prompts[6:], prompts[:2] + prompts[4:]):
        assert inference.main(chosen) == 0
        texts.append(capsys.readouterr().out)
    together, *alone = texts
    assert "2 x 6 (stopped by max_new_tokens)" in together
    assert engine == "lean" or "flash_attention, yours: 6 calls" in together
    stories = [text[text.index("\n\n") + 2 : text.index("\u250c")].strip() for text in alone]
    assert together.index(stories[0]) < together.index(stories[1])


def test_the_first_command_tells_a_whole_story_and_what_comes_next(no_kernels, capsys):
    assert inference.main(["--solution"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert '"You\'re the best!" ' in said and "(stopped by end of text)" in said
    assert said.endswith("Your turn: open task1/README.md; `python -m common.course progress` says where you stand.")


def test_a_text_that_ends_says_so(no_kernels, capsys):
    """After this much of a story the storyteller ends it."""
    prompt = "Once upon a time there was a cat. The cat was happy. They all lived happily ever after."
    assert inference.main(["--prompt", prompt, "--max-new-tokens", "60"]) == 0
    assert "(stopped by end of text)" in capsys.readouterr().out


def test_whose_kernels(no_kernels, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(session, "load_kernels", lambda *what: asked.append(what) or no_kernels[:2])
    for arguments, words in (([], "yours"), (["--solution"], "the reference solution's")):
        assert inference.main([*arguments, "--max-new-tokens", "2", "--backend", "simulator"]) == 0
        assert words in capsys.readouterr().out
    assert asked == [("student", "simulator", None), ("solution", "simulator", None)]
    with pytest.raises(SystemExit):
        inference.main(["--solution", "--variant", "tuned"])
    assert "--solution and --variant tuned contradict each other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "runs"), [(["--max-new-tokens", "1"], [1]), ([], [3]), (["--compare", "--held-out", "1"], [3, 100])]
)
def test_what_writes_is_warmed_up_within_its_room(no_kernels, monkeypatch, arguments, runs):
    """--compare does so for the full length of the text."""
    asked = []
    monkeypatch.setattr(LeanWriter, "warm_up", lambda self, prompts, new_tokens: asked.append(new_tokens))
    monkeypatch.setattr(compare, "LENGTH", 16)
    assert inference.main(["--engine", "lean", *arguments]) == 0
    assert asked == runs


# ---- ours compared with the reference -------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch):
    """The arguments for a short comparison, and short held-out sequences."""
    monkeypatch.setattr(compare, "LENGTH", 64)
    return ["--compare", "--max-new-tokens", "8", "--held-out", "1"]


def test_compare_shows_equal_texts_perplexity_and_times(no_kernels, short, capsys):
    assert inference.main([*short, "--prompt", "Once upon a time", "--prompt", "Ben and his dog"]) == 0
    out = capsys.readouterr().out
    for words in ("TTFT, ms", "TBT, ms (median)", "tokens/s", "perplexity of 1 x 64 held-out tokens", "0.000% off"):
        assert words in out
    assert "text after 'Once upon a time': the same 8 tokens" in out
    assert "text after 'Ben and his dog': the same 8 tokens" in out
    assert "ours: transformers' modules around these kernels; backend: " in out
    assert "decode: task 6 decode_attention, yours: 42 calls" in out
    assert "reference: transformers as it is; " in out and "PyTorch's sdpa on transformers' DynamicCache" in out


def test_compare_says_where_texts_part(no_kernels, short, capsys):
    no_kernels[1] = NewestKeyIgnored()
    prompts = [word for prompt in texts.PROMPTS for word in ("--prompt", prompt)]
    assert inference.main([*short, *prompts]) == 0
    assert re.search(r"differs at new token \d+, a decode step: '.*', the reference says '", capsys.readouterr().out)


def test_the_report_lies_between_its_markers(no_kernels, short, capsys, monkeypatch, tmp_path):
    file = tmp_path / "Results.md"
    begin, end = results.markers(compare.BLOCK)
    file.write_text(f"# Mine\n{begin}\n{end}\nrest\n")
    monkeypatch.setattr(results, "RESULTS", file)
    assert inference.main([*short, "--report"]) == 0
    assert "written to Results.md" in capsys.readouterr().out
    text = file.read_text()
    assert text.startswith(f"# Mine\n{begin}\nMeasured by `python -m task7.inference --compare") and text.endswith(
        "rest\n"
    )
    assert "| TTFT, ms |" in text and "> Once upon a time, there was a" in text and "the same 8 tokens" in text
    file.write_text("no markers")
    assert inference.main([*short, "--report"]) == 2
    assert "put these two lines" in capsys.readouterr().out


def test_a_report_without_compare_is_refused(capsys):
    with pytest.raises(SystemExit):
        inference.main(["--report"])
    assert "--report writes what --compare measures: give both" in capsys.readouterr().err


@pytest.mark.parametrize("main", [inference.main, lambda argv: test_main(TEST, [*argv, "--in-process"])])
def test_an_unfilled_gap_is_a_message_and_no_traceback(no_kernels, capsys, main):
    def gap(*args, **kwargs):
        raise NotImplementedError("flash_attention is not implemented yet: task4/flash_attention.cu:57 in tile")

    no_kernels[0].flash_attention = gap
    assert main([]) == 1
    out = capsys.readouterr().out
    assert "task4/flash_attention.cu:57" in out and "--solution" in out and "Traceback" not in out


@pytest.mark.parametrize(
    "options, words",
    [
        (["--temperature", "-1"], ["temperature is -1", "allowed"]),
        (["--top-k", "0"], ["top_k is 0", "allowed"]),
        (["--top-p", "2"], ["top_p is 2.0", "allowed"]),
        (["--compare", "--held-out", "0"], ["held_out is 0", "1 or more"]),
        (["--max-new-tokens", "0"], ["max_new_tokens is 0", "allowed"]),
        (["--max-new-tokens", "1021"], ["max_new_tokens is 1021", "context is 1024", "at most 1020"]),
        (["--engine", "lean", "--dtype", "fp16"], ["dtype is 'float16'", "takes float32: --variant tuned"]),
        (["--model", "./nowhere"], ["'./nowhere'", "no such folder", "allowed"]),
        (["--model", "tests"], ["'tests'", "config.json"]),
    ],
)
def test_wrong_arguments_are_named(no_kernels, capsys, monkeypatch, root, options, words):
    monkeypatch.chdir(root)
    assert inference.main(options) == 2
    out = capsys.readouterr().out
    assert all(word in out for word in words), out


def test_a_model_that_is_too_wide_is_refused_before_its_weights_are_read(tmp_path, no_kernels, capsys):
    GPT2Config(n_embd=512, n_head=2).save_pretrained(tmp_path)
    assert inference.main(["--model", str(tmp_path)]) == 2
    assert "head_dim is 256" in capsys.readouterr().out


def test_the_lean_engine_refuses_other_architectures(tmp_path, no_kernels, capsys):
    tiny_model("llama", vocab_size=8192).save_pretrained(tmp_path)
    models.load(str(models.STORYTELLER), local=True)[0].save_pretrained(tmp_path)
    arguments = ["--model", str(tmp_path), "--max-new-tokens", "3"]
    assert inference.main([*arguments, "--engine", "lean"]) == 2
    assert (
        "the model is a 'llama', and the lean engine knows 'gpt2' only: --engine transformers"
        in capsys.readouterr().out
    )
    assert inference.main(arguments) == 0


def test_a_hub_out_of_reach_is_said_so_with_the_choices(tmp_path, root):
    """A closed port stands in for the hub; in a separate process, as the address is read at import."""
    environment = os.environ | {
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HOME": str(tmp_path),
        "COLUMNS": "500",
    }
    done = run_python(["-m", "task7.inference_ref", "--model", "gpt2"], cwd=root, env=environment, timeout=60)
    assert done.returncode == 2
    assert "cannot be reached" in done.stdout and "storyteller" in done.stdout and "FOLDER" in done.stdout
    assert not done.stderr


def test_a_hub_that_never_answers_is_given_up_on(tmp_path, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *args, **kwargs: time.sleep(5))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *args: None)
    monkeypatch.setattr(models, "HUB_SECONDS", 0.05)
    with pytest.raises(ConnectionError, match="no answer"):
        models.find("gpt2")


# ---- the task's own test -------------------------------------------------------------------------


@pytest.mark.slow
def test_the_reference_has_the_published_perplexity(tokenizer):
    writer = reference_writer(models.load(str(models.STORYTELLER), local=True)[1], "simulator")
    assert perplexity(writer.logits, *held_out_sequences(tokenizer)) == pytest.approx(2.5872, abs=2e-4)


class Bf16Scores(TorchOps):
    def scores(self, query, key, scale):
        return super().scores(query, key, scale).bfloat16().double()


class NoScale(TorchOps):
    def flash_attention(self, query, key, value, causal, scale=None, lower_right=False):
        return super().flash_attention(query, key, value, causal, 1.0)


class NoMask(TorchOps):
    def flash_attention(self, query, key, value, causal, scale=None, lower_right=False):
        return super().flash_attention(query, key, value, False, scale)


class LastKeyDropped(TorchOps):
    def flash_attention(self, query, key, value, causal, scale=None, lower_right=False):
        out = super().flash_attention(query, key, value, causal, scale)
        out[:, :, -1:] = self.decode_attention(
            query[:, :, -1:].contiguous(), key, value, torch.tensor([key.size(2) - 1]), scale
        )
        return out


class NanOutput(TorchOps):
    def flash_attention(self, query, key, value, causal, scale=None, lower_right=False):
        return super().flash_attention(query, key, value, causal, scale) * torch.nan


class NewestKeyIgnored(TorchOps):
    def decode_attention(self, query, k_cache, v_cache, lengths, scale=None):
        return super().decode_attention(query, k_cache, v_cache, lengths - 1, scale)


class DecodeWithoutScale(TorchOps):
    def decode_attention(self, query, k_cache, v_cache, lengths, scale=None):
        return super().decode_attention(query, k_cache, v_cache, lengths, 1.0)


class CacheOnePositionOff(TorchOps):
    def update_cache(self, k_cache, v_cache, key, value, positions):
        k_cache.nan_to_num_()
        v_cache.nan_to_num_()
        super().update_cache(k_cache, v_cache, key, value, positions + (key.size(2) == 1))


def text_verdicts(ops):
    """task7.test's verdict on the greedy text of these operators, on fewer tokens than it uses itself."""
    bench = texts.Bench(torch_kernels(ops, ops))
    return [bench.text(number, new_tokens=10) for number in range(len(texts.PROMPTS))]


def perplexity_verdict(ops):
    return texts.Bench(torch_kernels(ops, ops)).perplexity("perplexity", count=1, length=256)


def test_right_kernels_pass():
    assert all(verdict.passed for verdict in (*text_verdicts(TorchOps()), perplexity_verdict(TorchOps())))


@pytest.mark.parametrize("broken", [Bf16Scores, NoScale, NoMask, NanOutput])
def test_broken_prefill_fails_the_perplexity(broken):
    assert not perplexity_verdict(broken()).passed


@pytest.mark.parametrize("broken", [LastKeyDropped, NewestKeyIgnored, DecodeWithoutScale, CacheOnePositionOff])
def test_broken_last_row_or_decode_fails_the_text(broken):
    verdicts = text_verdicts(broken())
    assert not all(verdict.passed for verdict in verdicts)
    assert any("differs at" in verdict.ours for verdict in verdicts)


def test_the_test_command_prints_points_and_the_status(no_kernels, capsys, monkeypatch):
    monkeypatch.setattr(texts, "SEQUENCES", dict.fromkeys(texts.SEQUENCES, 2))
    monkeypatch.setattr(texts, "LENGTH", 128)
    monkeypatch.setattr(texts, "ENGINE_SEQUENCES", 1)
    monkeypatch.setattr(texts, "NEW_TOKENS", 10)
    assert test_main(TEST, ["--in-process"]) == 0
    assert "Points: 1 of 1" in capsys.readouterr().out
    no_kernels[1] = NewestKeyIgnored()
    assert test_main(TEST, ["--perplexity", "--in-process"]) == 0
    assert test_main(TEST, ["--in-process"]) == 1
    out = capsys.readouterr().out
    assert "text         0 of 0.2" in out and "engine       0 of 0.3" in out and "Points: 0.5 of 1" in out


def test_a_gap_costs_only_the_parts_that_need_it(no_kernels, capsys, monkeypatch):
    def gap(*args):
        raise NotImplementedError("layernorm is not implemented yet: task7/gpt2_kernels.cu:40 in layernorm_kernel")

    no_kernels[2].layernorm = gap
    monkeypatch.setattr(texts, "SEQUENCES", dict.fromkeys(texts.SEQUENCES, 1))
    monkeypatch.setattr(texts, "LENGTH", 64)
    monkeypatch.setattr(texts, "NEW_TOKENS", 5)
    assert test_main(TEST, ["--in-process"]) == 1
    out = capsys.readouterr().out
    assert "task7/gpt2_kernels.cu:40" in out and "engine       0 of 0.3   a gap is not filled yet" in out
    assert "text         0.2 of 0.2" in out and "gelu         0.15 of 0.15" in out and "Points: 0.55 of 1" in out
    assert test_main(TEST, ["--perplexity", "--in-process"]) == 0
    assert "layernorm" not in capsys.readouterr().out


def test_the_kernels_part_is_a_test_like_that_of_other_tasks(capsys):
    assert test_main(TEST, ["--kernels", "--list"]) == 0
    out = capsys.readouterr().out
    assert "768 columns" in out and "3,072 columns" in out and "greedy" not in out


# ---- the real kernels ----------------------------------------------------------------------------


def test_gpt2_on_the_solution_kernels(solution):
    bench = texts.Bench(EngineKernels(solution("task4"), solution("task6"), solution("task7"), "solution"))
    verdicts = [bench.text(number, new_tokens=24) for number in range(len(texts.PROMPTS))]
    verdicts += bench.engine_texts(new_tokens=24)
    verdicts += [bench.perplexity(part, count=2, length=200) for part in ("engine", "perplexity")]
    for verdict in verdicts:
        assert verdict.passed, verdict


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gpt2_on_the_solution_kernels(solution, dtype):
    """Prefill and one decode step of a half-precision model on our kernels against the float32 model on sdpa."""
    attention = KernelAttention(solution("task4"), solution("task6"))
    tokenizer, model = models.load(str(models.STORYTELLER), local=True)
    ours = attention.attach(copy.deepcopy(model).to(dtype))
    ids = held_out_sequences(tokenizer, 1, 65)[0].to(attention.device)
    cache = KernelCache(attention, ours, 65)
    parts = [ours(ids[:, :64], past_key_values=cache).logits, ours(ids[:, 64:], past_key_values=cache).logits]
    found, expected = torch.cat(parts, 1), model.to(ids.device)(ids).logits
    divergence = torch.nn.functional.kl_div(
        found.float().log_softmax(-1), expected.log_softmax(-1), log_target=True, reduction="none"
    ).sum(-1)
    assert divergence.mean() < 0.02
    assert divergence[0, -1] < 0.1

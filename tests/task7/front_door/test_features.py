"""The feature table in task7/front_door/README.md: each row, and the test that proves our column."""

from __future__ import annotations

import ast
import re

import pytest

from common.console.paths import ROOT

TESTS = ROOT / "tests"
FILES = {
    "sdpa": "task7/front_door/test_sdpa.py",
    "transformers": "task7/front_door/test_transformers_attention.py",
    "onnx": "task7/front_door/test_onnx_export.py",
    **{name: f"common/kernels/flash/test_{name}.py" for name in ("flash", "options", "hidden_gradients")},
    "block_attention": "common/kernels/flash/test_block_attention.py",
    "attention": "common/kernels/test_attention.py",
    "decode": "common/kernels/decode/test_decode.py",
    "append_rotary": "common/kernels/decode/test_append_rotary.py",
}
HAS = {  # feature -> file and test
    "causal, upper-left aligned": "sdpa test_every_shape",
    "causal, lower-right aligned": "sdpa test_pytorchs_causal_biases",
    "a mask tensor, bool or additive": "sdpa test_a_mask_broadcasts",
    "fewer K/V heads (GQA)": "sdpa test_fewer_heads_of_keys_than_of_queries",
    "float32": "sdpa test_every_shape",
    "head_dim up to 128": "sdpa test_every_shape",
    "head_dim up to 256": "sdpa test_without_a_variant_flash_takes_what_torchs_takes",
    "values with a different head_dim": "sdpa test_every_shape",
    "rows that see no key give zeros": "sdpa test_a_mask_broadcasts",
    "NaN at hidden keys reaches no output, tuned": "flash test_what_hidden_keys_hold_reaches_nobody",
    "NaN at hidden keys reaches no gradient, tuned": "hidden_gradients test_keys_that_no_row_sees",
    "gradients": "sdpa test_gradients_of_the_tuned_kernels",
    "bitwise reproducible gradients": "sdpa test_deterministic_gradients_have_the_same_bits_every_time",
    "torch.func.grad and vmap": "sdpa test_torch_func_of_the_tuned_kernels",
    "dropout": "attention test_dropout_is_that_of_its_seed",
    "sliding window": "attention test_windows_and_strides_in_16_bits_without_gradients",
    "gradients of a sliding window": "attention test_every_option",
    "windows with different left and right widths": "attention test_every_option",
    "windows, lower-right aligned": "attention test_every_option",
    "block-sparse masks": "attention test_blocks_of_a_mask",
    "gradients of block-sparse masks": "block_attention test_every_block",
    "softcap": "attention test_every_option",
    "attention sinks": "attention test_every_option",
    "packed sequences without padding": "options test_packed_sequences_beside_float64",
    "decoding from a KV cache, paged too": "attention test_new_tokens_over_a_cache",
    "pages of 16 to 256 tokens, strided queries": "decode test_every_page_size test_strided_queries",
    "rotary embedding and left padding in the cache update": "append_rotary test_as_llama",
    "a position bias (T5)": "transformers test_t5 test_t5_is_trained_around_its_bias",
    "torch.compile with options, gradients too": "options test_a_compiled_graph_without_breaks",
    "a transformers model in one graph, padded too": "transformers test_a_whole_model_compiled_without_graph_breaks",
    "training a transformers model": "transformers test_caps_and_sinks",
    "torch.compile in one graph, torch.export": "sdpa test_every_mode_compiles_and_exports_without_a_break",
    "ONNX, as the standard operator": "onnx test_attention_is_the_standard_operator",
    "runs without a GPU": "sdpa test_every_shape",
}
REFUSED = {
    "gradient of an additive mask": "sdpa test_no_gradient_is_asked_of_other_kernels",
    "float64": "sdpa test_what_is_refused",
    "second derivatives": "options test_what_has_no_derivative_says_so",
    "forward mode (jvp)": "options test_what_has_no_derivative_says_so",
    "nested tensors": "sdpa test_what_is_refused",
    "gradient of a position bias": "transformers test_t5_is_trained_around_its_bias",
}


def table() -> dict[str, str]:
    """Feature -> the start of our column's entry."""
    text = (ROOT / "task7" / "front_door" / "README.md").read_text()
    rows = re.search(r"\| feature \| ours \|(.*?)\n\n", text, re.DOTALL)[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if row.startswith("|")]
    assert {len(row) for row in cells} == {8}
    return {row[0]: row[1].split(",")[0] for row in cells}


def test_the_table_has_the_same_rows():
    assert table() == dict.fromkeys(HAS, "has") | dict.fromkeys(REFUSED, "refused")


@pytest.mark.parametrize("name", FILES)
def test_every_row_has_its_tests(name):
    defined = {one.name for one in ast.parse((TESTS / FILES[name]).read_text()).body if hasattr(one, "name")}
    named = [set(tests) for file, *tests in map(str.split, [*HAS.values(), *REFUSED.values()]) if file == name]
    assert named and set().union(*named) <= defined

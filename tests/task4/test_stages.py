"""Task 4's stages one at a time: a mistake planted in one is named there, and only there."""

import pytest
from kernel_mistakes import OF_STAGES, TASK4
from planted import all_pass, assert_named

from common.compiling.gaps import gaps_of_operator
from common.compiling.skeletons import parse
from common.console.paths import ROOT
from common.testing.case import PASS
from common.testing.judging import judge
from task4.cases.stages import stage_cases

CASES = {case.name: case for case in stage_cases()}
OPERATORS = ["load_stage", "scores_stage", "mask_stage", "softmax_stage", "output_stage", "store_stage"]
PART = "load_tile: 37 rows, head_dim 40"
SCORES, BOTH = "compute_scores", "mask_scores: 30 keys left, diagonal 25"
DIAGONAL, ENDS = "mask_scores: diagonal 20", "mask_scores: 41 keys left"
P, M, SUM, OUT = (f"online_softmax: {name}" for name in "PmlO")
LEFT = "hidden = (key >= keys_left)"
PRODUCT, STORE, STORE_PART = "accumulate_output", "store_output: 12 rows", "store_output: 9 rows, head_dim 40"

# (mistake, case, the name that the test gives it, words of the diagnosis)
PLANTED = [
    ("factor_ignored", PART, "tile = source", r"it should be `tile = source \* factor`"),
    ("padding_not_written", PART, "unwritten outputs", "never written"),
    ("rows_of_D_floats", PART, "rows of D floats", "they have head_dim = 40"),
    ("Q_rows_of_the_first_warp", SCORES, "q_tile[r * D + d]", r"it should be `\(first_row \+ r\) \* D \+ d`"),
    ("neighboring_keys", SCORES, "neighboring keys per lane", r"its keys are lane, lane \+ 32"),
    ("first_key_of_the_lane", SCORES, "k_tile[lane * K_STRIDE + d]",
     r"it should be `\(lane \+ 32 \* c\) \* K_STRIDE \+ d`"),
    ("K_not_padded", SCORES, "k_tile[(lane + 32 * c) * D + d]", r"it should be `\(lane \+ 32 \* c\) \* K_STRIDE \+ d`"),
    ("scores_assigned", SCORES, "last four columns only", "= for"),
    ("not_causal", BOTH, "hidden = key >= keys_left", r"\| \(key > row \+ diagonal\)`"),
    ("not_causal", DIAGONAL, "nothing masked", "Nothing is masked"),
    ("end_of_keys_not_masked", BOTH, "hidden = key > row + diagonal", r"it should be `hidden = \(key >= keys_left\)"),
    ("diagonal_hidden", DIAGONAL, f"{LEFT} | (key >= row + diagonal)", r"\| \(key > row \+ diagonal\)`"),
    ("sees_one_ahead", DIAGONAL, f"{LEFT} | (key > row + diagonal + 1)", r"\| \(key > row \+ diagonal\)`"),
    ("masked_with_0", ENDS, "masked scores are 0", "must be -INFINITY"),
    ("row_of_the_warp", DIAGONAL, "row = r", r"it should be `row = first_row \+ r`"),
    ("key_of_the_lane", BOTH, "key = lane", r"it should be `key = lane \+ 32 \* c`"),
    ("neighbors_masked", ENDS, "key = lane * per_lane + c", r"it should be `key = lane \+ 32 \* c`"),
    ("no_key_yet", P, "no key yet", "subtract 0 there"),
    ("maximum_of_the_tile", P, "m_new = rowmax(s)", r"it should be `m_new = maximum\(m, rowmax\(s\)\)`"),
    ("maximum_of_the_tile", M, "m = rowmax(s)", r"it should be `m = maximum\(m, rowmax\(s\)\)`"),
    ("maximum_kept_of_the_tile", M, "m = rowmax(s)", r"it should be `m = maximum\(m, rowmax\(s\)\)`"),
    ("maximum_not_kept", M, "without m = maximum(m, rowmax(s))", r"without `m = maximum\(m, rowmax\(s\)\)`"),
    ("hidden_by_both", BOTH, f"{LEFT} & (key > row + diagonal)", r"\| \(key > row \+ diagonal\)`"),
    ("expf_for_exp2f", P, "p = exp(s - shift_of(m_new))", r"it should be `p = exp2\("),
    ("maximum_not_subtracted", P, "p = exp2(s)", r"it should be `p = exp2\(s - shift_of\(m_new\)\)`"),
    ("P_not_stored", P, "unwritten outputs", "never written"),
    ("l_not_rescaled", SUM, "l = l + rowsum(p)", r"it should be `l = rescale \* l \+ rowsum\(p\)`"),
    ("l_overwritten", SUM, "last key of each lane only", "= for"),
    ("p_not_added", SUM, "l = rescale * l", r"it should be `l = rescale \* l \+ rowsum\(p\)`"),
    ("inverse_rescale", OUT, "factor upside down", "at most 1"),
    ("O_not_rescaled", OUT, "without O = rescale * O", "what you get without"),
    ("P_rows_of_the_first_warp", PRODUCT, "p_tile[r * B_c + j]", r"it should be `\(first_row \+ r\) \* B_c \+ j`"),
    ("V_rows_mixed_up", PRODUCT, "a row of V twice", r"Row j \+ 2 of V"),
    ("O_overwritten", PRODUCT, "last four keys only", "takes o"),
    ("first_column_of_the_lane", PRODUCT, "v_tile[j * D + lane]", r"it should be `j \* D \+ lane \+ 32 \* c`"),
    ("not_normalized", STORE, "not normalized", "divide by l"),
    ("lanes_not_summed", STORE_PART, "l of one lane", "warp_sum"),
    ("zero_over_zero", STORE, "0 / 0", "it must give zeros"),
]  # fmt: skip


@pytest.mark.parametrize(("planted", "case", "name", "words"), PLANTED)
def test_a_mistake_is_named_in_its_stage(backend, planted, case, name, words):
    ops = TASK4.operators(planted, backend)
    assert_named(judge(CASES[case], ops), name, words)
    for other in CASES.values():
        if other.part != CASES[case].part:
            assert judge(other, ops).status == PASS, other.name


def test_every_mistake_of_the_stages_is_planted():
    assert {one[0] for one in PLANTED} >= OF_STAGES


test_the_solution_passes_every_stage = all_pass("task4", CASES.values())


@pytest.fixture
def filled(tmp_path):
    """filled(n): task 4's sources with the gaps 1 .. n filled."""

    def make(up_to: int):
        text = (ROOT / "task4" / "solution" / "flash_attention.cu").read_text()
        kept = (p.lines if p.is_gap and p.number <= up_to else p.skeleton() for p in parse(text, "flash_attention.cu"))
        source = tmp_path / "flash_attention.cu"
        source.write_text("\n".join(line for lines in kept for line in lines))
        return [source, ROOT / "task4" / "given" / "binding.cpp"]

    return make


@pytest.mark.parametrize("filled_gaps", range(7))
def test_a_stage_needs_its_own_gap_only(filled, filled_gaps):
    waiting = [len(gaps_of_operator(operator, filled(filled_gaps))) for operator in OPERATORS]
    assert waiting == [0] * filled_gaps + [1] * (6 - filled_gaps)
    assert gaps_of_operator("flash_attention", filled(filled_gaps))


def test_the_kernel_does_not_need_the_stages():
    sources = [ROOT / "task4" / "solution" / "flash_attention.cu", ROOT / "task4" / "given" / "binding.cpp"]
    assert gaps_of_operator("flash_attention", sources) == []

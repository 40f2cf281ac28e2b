"""Task 4's stages one at a time: what is planted in one is named there, and only there."""

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
FULL, PART = "load_tile: a full tile", "load_tile: 37 rows, head_dim 40"
SCORES, BOTH = "compute_scores", "mask_scores: 30 keys left, diagonal 25"
DIAGONAL, ENDS = "mask_scores: diagonal 20", "mask_scores: 41 keys left"
P, M, SUM, OUT = (f"online_softmax: {name}" for name in "PmlO")
PRODUCT, STORE, STORE_PART = "accumulate_output", "store_output: 12 rows", "store_output: 9 rows, head_dim 40"

# (mistake, case, the name that the test gives it, words of the diagnosis)
PLANTED = [
    ("factor_ignored", PART, "factor ignored", "factor 0.25 is not applied"),
    ("padding_not_written", PART, "unwritten outputs", "never written"),
    ("rows_of_D_floats", PART, "rows of D floats", "they have head_dim = 40"),
    ("Q_rows_of_the_first_warp", SCORES, "Q rows of the first warp", "its first row of Q is first_row"),
    ("neighbouring_keys", SCORES, "neighbouring keys per lane", r"its keys are lane, lane \+ 32"),
    ("first_key_of_the_lane", SCORES, "first key of each lane only", r"key c of a lane is lane \+ 32 \* c"),
    ("K_not_padded", SCORES, "K read with rows of D floats", "T::K_STRIDE = 68"),
    ("scores_assigned", SCORES, "last four columns only", "= for"),
    ("not_causal", BOTH, "diagonal ignored", r"when key <= row \+ diagonal"),
    ("not_causal", DIAGONAL, "nothing masked", "Nothing is masked"),
    ("end_of_keys_not_masked", BOTH, "keys_left ignored", "from keys_left = 30 on"),
    ("diagonal_hidden", DIAGONAL, "diagonal hidden", "is seen"),
    ("sees_one_ahead", DIAGONAL, "one key ahead", "One key too many"),
    ("masked_with_0", ENDS, "masked scores are 0", "must be -INFINITY"),
    ("row_of_the_warp", DIAGONAL, "row counted within the warp", r"is first_row \+ r"),
    ("key_of_the_lane", BOTH, "every key is the lane's first", r"lane \+ 32 \* c"),
    ("no_key_yet", P, "no key yet", "subtract 0 there"),
    ("maximum_of_the_tile", P, "maximum of the tile", "the larger one of the old maximum"),
    ("maximum_of_the_tile", M, "maximum of the tile", "the larger one of the old maximum"),
    ("maximum_not_kept", M, "maximum not kept", "takes the new one"),
    ("expf_for_exp2f", P, "expf for exp2f", "use exp2f"),
    ("maximum_not_subtracted", P, "maximum not subtracted", "p is exp2f"),
    ("P_not_stored", P, "unwritten outputs", "never written"),
    ("l_not_rescaled", SUM, "l not rescaled", "before p is added"),
    ("l_overwritten", SUM, "last key of each lane only", "= for"),
    ("p_not_added", SUM, "p not added", "own p is not added"),
    ("inverse_rescale", OUT, "factor upside down", "at most 1"),
    ("O_not_rescaled", OUT, "O not rescaled", r"exp2f\(m - m_new\)"),
    ("P_rows_of_the_first_warp", PRODUCT, "P rows of the first warp", "its first row is first_row"),
    ("V_rows_mixed_up", PRODUCT, "a row of V twice", r"Row j \+ 2 of V"),
    ("O_overwritten", PRODUCT, "last four keys only", "takes o"),
    ("first_column_of_the_lane", PRODUCT, "first column of each lane only", r"lane \+ 32 \* c"),
    ("not_normalised", STORE, "not normalised", "divide by l"),
    ("lanes_not_summed", STORE_PART, "l of one lane", "warp_sum"),
    ("zero_over_zero", STORE, "0 / 0", "it must give zeros"),
]


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

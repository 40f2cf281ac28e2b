"""Which failures belong together, and which are reported first."""

import io

import torch
from rich.console import Console

from common.diagnosis.diagnose import Diagnosis
from common.diagnosis.slices import BARRIER
from common.diagnosis.stages import show_stages
from common.testing.case import ERROR, FAIL, Case, Verdict
from common.testing.failures import causes_of, print_failures


def verdict(part: str, name: str = "a", status: str = FAIL, **known: object) -> Verdict:
    return Verdict(Case(name, part, lambda generator: {}, None, None, 1e-6, ()), status, **known)


def failure(name: str, elements: int, max_error: float | None = None, part: str = "gemm", **possible: str) -> Verdict:
    found = Diagnosis([*possible], [*possible.values()], possible, where=["3 of 9 elements are wrong."])
    return verdict(part, name, max_error=max_error, explain=lambda: found, elements=elements)


def printed(verdicts: list[Verdict], inside: dict | None = None, **options: object) -> str:
    text = io.StringIO()
    print_failures(Console(file=text, width=100), verdicts, inside, **options)
    return text.getvalue()


def words(*arguments: object, **options: object) -> str:
    """The output, with line breaks removed."""
    return " ".join(printed(*arguments, **options).split())


def test_what_is_known_is_told_before_what_is_not() -> None:
    unknown = [failure(f"case {i}", 5000) for i in range(3)]
    first, second = causes_of([*unknown, failure("another", 5000, swapped="M and N are exchanged.")])
    assert first.says == "M and N are exchanged." and second.verdicts == unknown


def test_a_tiny_case_alone_does_not_lead() -> None:
    unknown = [failure(f"case {i}", 5000) for i in range(3)]
    tiny = failure("one element", 3, swapped="M and N are exchanged.")
    assert [one.says for one in causes_of([*unknown, tiny])] == ["", "M and N are exchanged."]
    both = causes_of([*unknown, tiny, failure("K = 1", 5, swapped="M and N are exchanged.")])
    assert both[0].says == "M and N are exchanged."


def test_an_exchange_of_lines_goes_before_the_formula_that_the_output_matches() -> None:
    edit, known = "With lines 3 and 4 exchanged, all 2 failing cases pass.", "The output matches `a = b`."
    for leads in (False, True):
        both = [failure(name, 5000, rescale=known) for name in ("a", "b")]
        both[0].found.tried, both[0].found.tried_leads = [edit], leads
        assert causes_of(both)[0].sentences()[:2] == ([edit, known] if leads else [known, edit])


def test_one_error_with_other_sizes_is_told_once() -> None:
    def refused(name: str, shape: list[int], line: int) -> Verdict:
        return verdict("layer", name, ERROR, said=[f"query has shape {shape}"], file_line=f"attention.py:{line}")

    small, large = refused("small", [2, 3], 7), refused("large", [64, 128], 7)
    assert "query has shape [2, 3]" in printed([small, large])
    assert "The same, with other numbers, holds for: large" in printed([small, large])
    assert "The same holds for: again" in printed([small, refused("again", [2, 3], 7)])
    assert len(causes_of([small, refused("elsewhere", [64, 128], 9)])) == 2


def test_one_table_of_stages_fits_on_a_screen() -> None:
    p, value = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[1.0], [3.0]])
    weights, ref = torch.tensor([[1.0, 0.0], [0.25, 0.75]]), p @ value
    table = show_stages({"S": p.log(), "P": p}, weights @ value, ref, 1e-6, ("row", "col"), weights)

    both = [verdict(part, explain=lambda: Diagnosis(where=["Wrong."], table=table)) for part in ("full", "causal")]
    one = words(both)
    assert one.count("O expected") == 1 and one.index("O expected") < one.index("causal: a")
    assert one.count("Key 0 differs most: 0.25, not 0.5.") == 2
    assert one.count("--all shows the numbers of each stage.") == 1
    every = words(both, everything=True)
    assert every.count("O expected") == 2 and "--all shows" not in every


def test_parts_that_follow_from_the_same_stages_are_told_together() -> None:
    built_of = {"full": ["load", "store"], "causal": ["load", "store"]}
    parts = (("full", "a"), ("full", "b"), ("causal", "a"), ("store", "a"))
    told = printed([verdict(*one, said=["Wrong."]) for one in parts], built_of=built_of)
    assert "full, causal: 3 cases also failed. They are built on store: fix that first" in told


def test_one_small_output_that_equals_an_answer_by_chance_says_nothing() -> None:
    """Larger outputs, also those made of numbers, contradict it."""
    unknown = [failure(f"case {i}", 5000, 0.5) for i in range(2)]  # too large to be compared with every answer
    small = failure("K = 33", 500, 0.5, dropped="The last tile is dropped.")
    assert [one.says for one in causes_of([*unknown, small])] == ["", ""]
    with_nan = [failure(f"case {i}", 5000, float("nan")) for i in range(2)]
    assert causes_of([*with_nan, small])[0].says == "The last tile is dropped."
    for one in with_nan:
        one.found.refuted = frozenset({"dropped"})  # it would show there, and does not
    assert [one.says for one in causes_of([*with_nan, small])] == ["", ""]
    two = [small, failure("K = 65", 700, 0.5, dropped="The last tile is dropped.")]
    assert causes_of([*unknown, *two])[0].says == "The last tile is dropped."
    refuting = [failure(f"K = {i}", 400, 0.5) for i in range(3)]
    for number, one in enumerate(refuting):
        one.found.refuted = frozenset({"dropped"})  # smaller ones, too, if they are the majority
        says = "" if number == 2 else "The last tile is dropped."
        assert causes_of([*refuting, *two])[0].says == says


def test_zeros_come_behind_what_tells_more() -> None:
    zeros = [failure(f"small {i}", 200, zeros="Every output is 0.") for i in range(3)]
    for one in zeros:
        one.found.names = ["all zeros"]
    columns = [failure("40 keys", 5000, slices="0 is in col 32 to 63.")]
    assert [one.says for one in causes_of([*zeros, *columns])] == ["0 is in col 32 to 63.", "Every output is 0."]


def test_no_barrier_is_asked_for_where_no_race_was_found() -> None:
    one = failure("7 x 31", 217)
    one.found.signs, one.found.unless_clean = ["Row 0 is wrong by one factor."], [BARRIER]
    clean = words([one], {"gemm": []})
    assert "is there a __syncthreads() between" in words([one])
    assert "is wrong by one factor." in clean and "__syncthreads" not in clean


def test_what_is_recognized_leads_alone() -> None:
    """Its sentence, how much is wrong, and no more."""
    one = failure("64 x 64", 5000, swapped="M and N are exchanged.")
    one.found.signs, one.found.hints, one.found.unless_clean = ["A sign."], ["A hint."], [BARRIER]
    lines = [line.strip() for line in printed([one]).strip().splitlines()]
    assert lines == ["gemm: 64 x 64  FAIL", "M and N are exchanged.", "3 of 9 elements are wrong."]


def test_a_name_that_shows_in_few_cases_leads() -> None:
    """An answer too close to the right one is indistinguishable from it: that refutes nothing."""
    near = [failure(f"rows {i}", 5000, 1e-4) for i in range(3)]
    for one in near:
        one.found.refuted = frozenset({"transposed"})
    named = failure("large numbers", 700, 0.1, erf="It is the exact GELU.")
    assert causes_of([*near, named])[0].says == "It is the exact GELU."


def test_of_cases_with_one_cause_a_certain_one_is_told() -> None:
    with_nan, certain = (failure(f"rows {i}", 5000, no_eps="eps is not added.") for i in range(2))
    with_nan.found.concluded = True
    (cause,) = causes_of([with_nan, certain])
    assert cause.is_recognized and cause.verdicts == [certain, with_nan]
    assert not causes_of([with_nan])[0].is_recognized


def test_what_is_recognized_is_told_first_and_once_and_alone() -> None:
    mean, width = {"mean": "The mean is wrong."}, {"width": "It is divided by width - 1."}
    causal = [failure(name, 5000, None, "causal", **one) for name, one in (("a", width), ("b", width), ("1 row", mean))]
    full, layer = failure("1 column", 5000, None, "full"), failure("c", 5000, None, "layer", **width)
    told = printed([full, *causal, layer])
    assert told.index("causal: a") < told.index("full: 1 column")
    assert told.count("width - 1") == 1 and "The mean" not in told
    assert "causal: 1 row  FAIL: 3 of 9 elements are wrong." in told
    assert "layer: the same mistake shows in: c" in told


def test_what_is_concluded_from_one_of_many_cases_is_chance() -> None:
    concluded = failure("one large value", 5000, 0.1, mean="The rows are normalized with a wrong mean.")
    concluded.found.concluded = True
    others = [failure(f"{rows} rows", 700, 0.5) for rows in range(3)]
    assert causes_of([concluded, *others[:2]])[0].says
    assert not any(one.says for one in causes_of([concluded, *others]))
    also = failure("another", 700, 0.1, mean="The rows are normalized with a wrong mean.")
    also.found.concluded = True
    assert causes_of([concluded, also, *others])[0].says


def test_an_answer_that_only_nan_equal_is_refuted_by_one_number() -> None:
    of_nan = [failure(f"{columns} column", 5000, float("nan"), eps="eps is not added.") for columns in (1, 2)]
    for one in of_nan:
        one.found.concluded = True
    assert causes_of(of_nan)[0].says == "eps is not added."
    refuting = failure("31 columns", 5000, 0.5)
    refuting.found.refuted = frozenset({"eps"})
    assert [one.says for one in causes_of([*of_nan, refuting])] == ["", ""]

"""python -m common.mutants: which mutants there are, what a verdict rests on, and a sample that runs."""

import re
from collections import Counter
from collections.abc import Sequence

import pytest

from common.compiling.manifest import tasks
from common.compiling.skeletons import solution_files
from common.console.paths import ROOT
from common.inspect.findings.words import OR_THE_ORDER
from common.mutants import reviewed
from common.mutants.__main__ import main, parser_of
from common.mutants.building import mutated, mutated_lines
from common.mutants.c_code import without_comments
from common.mutants.collected import DEVELOPMENT, FRESH, MOST_FRESH, SETS, UNSEEN, collected, gaps_of
from common.mutants.deciding import CAUGHT, EQUIVALENT, MISLED, MISSED, NAMED, NEAR, Decision, decided
from common.mutants.expected import OF_RULE, targets, topics_of
from common.mutants.mutation import KINDS, Mutant, Mutation
from common.mutants.observing import Claim, Observation
from common.mutants.table import markdown, summary

LINES = ["", "for (int k = 0; k < K; ++k) {", "    sum += a[k] * b[k];", "}", "out[0] = sum;"]


def mutant(kind: str = "loop", old: str = "k < K", new: str = "k < K - 1", line: int = 2) -> Mutant:
    return Mutant("task2", "a.cu", 1, "f", 2, 5, Mutation(kind, 0, 5, old, new, line, LINES[line - 1].strip()))


def seen(*claims: Claim, failed: tuple[str, ...] = ("attention",)) -> Observation:
    return Observation([*failed], [], [*claims])


def test_every_gap_has_mutants_and_every_rule_is_used() -> None:
    every = collected()
    assert len(every) >= 400
    assert {one.mutation.kind for one in collected(None, SETS)} == set(KINDS) == set(OF_RULE)
    assert len({one.key for one in every}) == len(every)
    for task in ("task1", "task2", "task3", "task4", "task5", "task6", "task7"):
        assert {(one.file, one.gap) for one in every if one.task == task}
    assert 0.4 < len(collected(None, [DEVELOPMENT])) / len(every) < 0.6
    assert len(collected(None, [UNSEEN])) >= 400


def test_the_sets_share_no_mutant() -> None:
    keys = [one.key for name in SETS for one in collected("task4", [name])]
    assert len(set(keys)) == len(keys) == len(collected("task4", SETS))


@pytest.mark.parametrize("task", tasks())
def test_fresh_mutants_are_many_and_none_dominates(task: str) -> None:
    fresh = collected(task, [FRESH])
    counts = Counter((one.file, one.gap, one.mutation.kind) for one in fresh)
    assert len(counts) >= 40 and max(counts.values()) <= MOST_FRESH
    gaps = sum(len(gaps_of(file.read_text())) for file in solution_files(task))
    assert len({(one.file, one.gap) for one in fresh}) == gaps
    for one in fresh:
        file = ROOT / task / "solution" / one.file
        assert one.mutation.new != file.read_text()[one.mutation.start : one.mutation.end]
        if one.file.endswith(".py"):
            compile(mutated(file.read_text(), one), one.file, "exec")


def test_a_fresh_mutant_s_text_is_in_no_other_set() -> None:
    def texts(names: Sequence[str]) -> list[str]:
        every = collected("task7", names)
        file = (ROOT / "task7" / "solution" / "gpt2_kernels.cu").read_text()
        return ["".join(without_comments(mutated(file, one)).split()) for one in every]

    fresh, others = texts([FRESH]), texts([name for name in SETS if name != FRESH])
    assert len(set(fresh)) == len(fresh) and not set(fresh) & set(others)


def test_of_a_barrier_in_another_place_only_the_barrier_counts() -> None:
    moved = mutant("moved", "sum += a[k] * b[k]; __syncthreads();", "__syncthreads(); sum += a[k] * b[k];", 3)
    assert topics_of(moved) == {"barrier"}
    race = Claim("finding", "race", "Put a __syncthreads() between line 2 and line 3.", "gemm", (("a.cu", 99),))
    assert decided(moved, seen(race), LINES).verdict == NAMED


def test_tasks_are_named_in_one_list_or_several(capsys: pytest.CaptureFixture) -> None:
    options = parser_of().parse_args(["--task", "task2,task3", "--task", "task5"])
    assert options.tasks == ["task2", "task3", "task5"]
    with pytest.raises(SystemExit):
        main(["--task", "task2,task9"])
    assert "no task is called 'task9'; there are task1, task2" in " ".join(capsys.readouterr().err.split())
    assert main(["--task", "task7,task1", "--sample", "4", "--list"]) == 0
    keys = [line for line in capsys.readouterr().out.splitlines() if re.match(r"task\d/", line)]
    assert [key[:5] for key in keys] == ["task1"] * 4 + ["task7"] * 4


def test_what_was_sampled_can_be_left_out(capsys: pytest.CaptureFixture) -> None:
    def listed(*more: str) -> set[str]:
        assert main(["--task", "task7", "--seed", "5", "--list", *more]) == 0
        return {line for line in capsys.readouterr().out.splitlines() if line.startswith("task7/")}

    first, others = listed("--sample", "10"), listed("--leave-out", "10")
    assert len(first) == 10 and not first & others and first | others == listed()


def test_what_was_reviewed_is_still_among_the_mutants() -> None:
    keys = {one.key for one in collected(None, SETS)}
    assert set(reviewed.equivalent()) <= keys
    assert all(len(reason) > 20 for reason in reviewed.equivalent().values())


@pytest.mark.parametrize(
    ("claims", "failed", "verdict"),
    [
        ((), (), MISSED),
        ((Claim("where", "", "It equals none.", "attention"),), ("attention",), CAUGHT),
        ((Claim("where", "", "It equals none.", "gemm"),), ("gemm",), NEAR),
        ((Claim("cause", "last tile dropped", "The loop ends before the last tile.", "gemm"),), ("gemm",), NAMED),
        ((Claim("cause", "K and V swapped", "K and V are swapped.", "gemm"),), ("gemm",), MISLED),
        ((Claim("finding", "out_of_bounds", "", "gemm", (("a.cu", 3),)),), ("gemm",), NAMED),
        ((Claim("finding", "race", "", "gemm", (("a.cu", 99),)),), ("gemm",), MISLED),
        ((Claim("ended", "ended", "a.cu:2: ...", "gemm", (("a.cu", 2),)),), ("gemm",), NAMED),
    ],
)
def test_a_verdict_follows_from_the_claims(claims: tuple[Claim, ...], failed: tuple[str, ...], verdict: str) -> None:
    assert decided(mutant(), seen(*claims, failed=failed), LINES).verdict == verdict


def test_a_barrier_asked_for_in_vain_misleads_at_the_right_line_too() -> None:
    barrier = Claim("finding", "race", "Put a __syncthreads() between line 2 and line 3.", "gemm", (("a.cu", 2),))
    assert decided(mutant(), seen(barrier), LINES).verdict == MISLED
    index = Claim("finding", "race", "Check the index, or put a __syncthreads() there.", "gemm", (("a.cu", 2),))
    assert decided(mutant(), seen(index), LINES).verdict == NAMED


def test_what_says_where_to_look_misleads_elsewhere_and_is_near_in_the_function_it_names() -> None:
    mask = Claim("cause", "hidden keys count", "Look at the comparison that hides keys.", "attention")
    assert decided(mutant(), seen(mask), LINES).verdict == MISLED
    one = mutant()
    in_mask = Mutant(one.task, one.file, one.gap, "mask_scores", one.first_line, one.last_line, one.mutation)
    assert decided(in_mask, seen(mask), LINES).verdict == NEAR


def test_one_false_cause_outweighs_a_right_one() -> None:
    right = Claim("cause", "last tile dropped", "The loop ends before the last tile.", "gemm")
    false = Claim("cause", "K and V swapped", "K and V are swapped.", "attention")
    assert decided(mutant(), seen(right, false), LINES).verdict == MISLED


def test_the_lines_of_a_mutant_are_its_own_and_those_that_use_what_it_sets() -> None:
    assert targets(mutant(), LINES) == {2, 3}
    assert targets(mutant("store", "sum += a[k] * b[k];", "", 3), LINES) == {3, 5}


def test_shares_leave_out_what_is_equivalent() -> None:
    every = [(mutant(), Decision(verdict, "")) for verdict in (NAMED, NAMED, NEAR, CAUGHT, EQUIVALENT)]
    assert summary(every) == "mutants: 5 named 50% near 25% caught 25% misled 0 missed 0"
    table = markdown(every, "python -m common.mutants")
    assert "| task2 | 2 | 1 | 1 |  |  | 1 | 5 |" in table and "| all | 2 |" in table


@pytest.mark.slow
def test_a_sample_runs_and_nothing_is_missed_or_misled(capsys: pytest.CaptureFixture) -> None:
    """Twelve of task 7's, whose kernels are built soonest."""
    assert main(["--task", "task7", "--sample", "12", "--seed", "3"]) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert re.fullmatch(r"mutants: 12 named \d+% near \d+% caught \d+% misled 0 missed 0", last)


def test_a_call_left_out_is_named_by_its_function() -> None:
    left_out = mutant("call", "launch_scores(query, key);", "", 3)
    says = "No thread reads key. scores_kernel was not launched. launch_scores, which launches it, is called nowhere."
    nowhere = Claim("finding", "not_read", says, "attention", (("a.cu", 90),))
    assert decided(left_out, seen(nowhere), LINES).verdict == NAMED
    other = Claim("finding", "not_read", says.replace("launch_scores", "launch_output"), "attention", (("a.cu", 90),))
    assert decided(left_out, seen(other), LINES).verdict != NAMED


def test_a_race_of_two_lines_in_the_wrong_order_is_named_where_the_order_is_offered() -> None:
    swapped = mutant("order", "use(x); make(x);", "make(x); use(x);", 3)
    says = "Put a __syncthreads() between line 2 and line 3."
    race = Claim("finding", "race", says, "gemm", (("a.cu", 2), ("a.cu", 3)))
    assert decided(swapped, seen(race), LINES).verdict == MISLED
    offered = Claim("finding", "race", f"{says} {OR_THE_ORDER}", "gemm", (("a.cu", 2), ("a.cu", 3)))
    assert decided(swapped, seen(offered), LINES).verdict == NAMED
    assert decided(mutant(), seen(offered), LINES).verdict == MISLED  # no statement is in the wrong place


def test_a_number_in_an_index_is_about_the_index() -> None:
    def topics(statement: str, old: str) -> set[str]:
        return topics_of(Mutant("task4", "a.cu", 1, "f", 2, 5, Mutation("constant", 0, 5, old, "1", 2, statement)))

    assert "index" in topics("v = make_float4(column[0], column[2 * T::D]);", "2")
    assert "index" not in topics("x = 2 * column[2 * T::D];", "2")


def test_a_mutant_is_shown_as_long_as_the_solution_is() -> None:
    for one in collected("task2", [FRESH]):
        text = (ROOT / one.task / "solution" / one.file).read_text()
        shown = mutated_lines(text, one)
        assert shown.count("\n") == text.count("\n")
        assert "".join(shown.split()) == "".join(mutated(text, one).split())

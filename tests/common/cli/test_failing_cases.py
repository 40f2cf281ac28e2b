"""What the report on failing cases prints before the verdicts, and what after them."""

import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from common.cli.failing_cases import loops_of, print_diagnosis
from common.diagnosis.diagnose import Diagnosis
from common.inspect.findings.model import Access, Finding, Group
from common.inspect.source_lines import Place
from common.testing.case import ERROR, FAIL, Case, Verdict

FILE = "task2/solution/attention_kernel.cu"


def line_of(text: str, file: str = FILE) -> int:
    return next(number for number, line in enumerate(Path(file).read_text().split("\n"), 1) if text in line)


def group(kind: str, **options: object) -> Group:
    access = Access("write", 4, Place(FILE, 157, "softmax_kernel"), (0, 0, 0), (5, 0, 0))
    found = Finding(kind, "softmax_kernel", variable="y", shape=(2, 9), element_bytes=4, byte_offset=20, **options)
    return Group([Finding(**{**vars(found), "accesses": (access,)})], ["softmax: 2 x 9"], 1)


def printed(
    found: dict[str, list[Group]], built_of: dict[str, list[str]] | None = None, sound: Sequence[str] = (), **named: str
) -> str:
    """The output for these findings; `named` is the mistake of every part that is not built from others."""
    text, verdicts = io.StringIO(), []
    for part in found:
        known = {} if part in (built_of or {}) else named
        diagnosis = Diagnosis([*known], [*known.values()], known, where=["3 of 18 elements are wrong."])
        case = Case("2 x 9", part, lambda generator: {}, None, None, 1e-6, ())
        verdicts.append(Verdict(case, FAIL, explain=lambda diagnosis=diagnosis: diagnosis, elements=500))
    print_diagnosis(Console(file=text, width=120), verdicts, found, built_of=built_of, sound=sound)
    return " ".join(text.getvalue().split())


def test_a_known_mistake_leads_and_an_index_out_of_bounds_is_a_line_beside_it() -> None:
    out = printed({"softmax": [group("out_of_bounds")]}, last="The last column is left out.")
    assert out.startswith("softmax: 2 x 9 FAIL The last column is left out. 3 of 18 elements are wrong.")
    assert "also finds: out of bounds in softmax_kernel: y[0, 5]" in out
    assert "which watches every access, found" not in out


def test_a_known_mistake_of_a_stage_leads_what_the_checked_build_finds_in_what_is_built_of_it() -> None:
    found = {"attention": [group("out_of_bounds")], "softmax": [group("out_of_bounds")]}
    out = printed(found, {"attention": ["softmax"]}, last="The last column is left out.")
    assert out.startswith("softmax: 2 x 9 FAIL The last column is left out.")
    assert "attention: 1 case also failed. It is built on softmax" in out
    assert out.count("also finds: out of bounds") == 1 and "which watches every access, found" not in out


def test_a_missing_barrier_is_surer_than_a_known_answer() -> None:
    places = [Place(FILE, line, "softmax_kernel") for line in (150, 157)]
    accesses = tuple(Access(*one, (0, 0, 0), (5, 0, 0)) for one in (("read", 4, places[0]), ("write", 4, places[1])))
    race = Finding("race", "softmax_kernel", space="shared", variable="partial", shape=(9,), accesses=accesses)
    out = printed({"softmax": [Group([race], ["softmax: 2 x 9"], 1)]}, last="The last column is left out.")
    assert "1. race in softmax_kernel" in out and out.index("race") < out.index("The last column is left out.")


def test_calls_and_arguments_are_not_to_blame_for_a_race() -> None:
    for kind, advice in (("race", False), ("out_of_bounds", True)):
        out = printed({"full": [group(kind)]}, sound=["load", "store"])
        assert "load, store: these pass when tested alone." in out
        assert ("Look first at the calls and their arguments" in out) == advice


def test_an_endless_loop_around_a_barrier_is_named_by_its_line() -> None:
    """The thread was stopped while it waited: the simulator knows the kernel but not the line."""
    said = ["no progress for a long time", "  in kernel row_sum_kernel, block (1,0,0) thread (240,0,0)"]
    case = Case("2 x 9", "row-sums", lambda generator: {}, None, None, 1e-6, ())
    endless = Verdict(case, ERROR, said=[*said, f"  launched at {FILE}:338"], is_endless=True)
    assert [one.text for one in loops_of([endless])][:1] == [
        "for (unsigned active = ROW_THREADS / 2; active > 0; active /= 2) {"
    ]
    named = Verdict(case, ERROR, said=[*said, f"  at {FILE}:68 in row_sum_kernel"], is_endless=True)
    assert "active /= 2" in loops_of([named])[1].text


def of_accesses(kind: str, *places: Place, **options: object) -> dict[str, list[Group]]:
    """A finding with an access at each of these places, in the order recorded: the latest first."""
    accesses = tuple(Access("read", 4, place, (0, 0, 0), (5, 0, 0)) for place in places)
    return {"gemm": [Group([Finding(kind, "gemm_nt_kernel", accesses=accesses, **options)], ["gemm: 2 x 9"], 1)]}


def test_lines_that_keep_threads_from_a_barrier_follow_the_error() -> None:
    barrier, loop = line_of("__syncthreads();"), line_of("for (unsigned active = ROW_THREADS / 2")
    said = [f"barrier divergence: this thread reached __syncthreads at {FILE}:{loop + 2} while 32 thread(s) of its "]
    said[0] += f"block wait at {FILE}:{barrier}"
    case, text = Case("2 x 9", "softmax", lambda generator: {}, None, None, 1e-6, ()), io.StringIO()
    print_diagnosis(Console(file=text, width=120), [Verdict(case, ERROR, said=said)], {})
    out = " ".join(text.getvalue().split())
    assert out.index("barrier divergence") < out.index(f"Which ones do is decided in: {loop} for (unsigned active")


def test_of_several_calls_the_one_that_leaves_an_array_leads() -> None:
    """Earlier calls stayed in bounds, so this call's argument leads; if the first call is out of bounds, none does."""
    file = "task4/solution/flash_attention.cu"
    access, first, last = (
        line_of(text, file)
        for text in ("tile[row * STRIDE + col] =", "load_tile<T, B_r, D>(q_tile", "load_tile<T, B_c, D>(v_tile")
    )

    def told(call: int) -> str:
        place = Place(file, access, "load_tile", (Place(file, call, "flash_attention_kernel"),))
        return printed(of_accesses("out_of_bounds", place, variable="value", shape=(1, 8), byte_offset=32))

    assert f"-> {file}:{last} load_tile<T, B_c, D>(v_tile" in told(last) and told(last).count("->") == 1
    assert told(first).count("->") == 1 and f"-> {file}:{access}:" in told(first)


def test_the_loop_around_a_vote_comes_before_a_return_before_it() -> None:
    file = "task5/solution/sparse_attention.cu"
    vote, loop, leave = (
        line_of(text, file)
        for text in ("__ballot_sync(0xff", "for (int start = 0; start < k_blocks", "if (row >= rows) return;")
    )
    out = printed(of_accesses("absent_vote", Place(file, vote, "compress_block_mask_kernel"), detail="3 have returned"))
    assert "vote of a warp after lanes have returned" in out and "3 have returned: they bring nothing to it" in out
    assert out.index(f"{loop} for (int start") < out.index(f"{leave} if (row >= rows) return")

"""The checks cannot be fooled, and every way in which a call can end is reported."""

import io
import math
import re
from types import SimpleNamespace

import pytest
import torch
from fake_operators import fake_operators
from rich.console import Console

from common.diagnosis.locating import UNUSED_BITS, nan_of
from common.reference import oracle as reference
from common.testing import calling, judging
from common.testing.case import ERROR, PASS, SKIPPED, Case, Verdict
from common.testing.judging import judge
from common.testing.points import points_of
from common.testing.report import print_report
from common.testing.run import chosen_parts, run_cases
from task2.cases import PARTS, cases

CASES = {case.name: case for case in cases()}


def softmax_case(**options) -> Case:
    """A small case whose operator is ops.softmax."""
    settings = {
        "name": "small",
        "part": "softmax",
        "inputs": lambda generator: {"x": torch.randn(4, 6, generator=generator)},
        "call": lambda ops, x: ops.softmax(x),
        "reference": reference.softmax,
        "floor": 1e-6,
        "axes": ("row", "col"),
        "points": 1.0,
    }
    return Case(**{**settings, **options})


def printed(cases, ops, parts=()) -> tuple[int, str]:
    """(0 if every case passed, else 1; the output without a terminal)."""
    console = Console(file=io.StringIO(), width=200)
    verdicts = run_cases(chosen_parts(cases, parts), ops, console, lambda case: judging.judge(case, ops, 0))
    print_report(console, "a title", verdicts)
    return int(not all(verdict.status in (PASS, SKIPPED) for verdict in verdicts)), console.file.getvalue()


def test_outputs_are_poisoned_and_the_setting_is_restored() -> None:
    before = torch.get_deterministic_debug_mode()
    half = fake_operators(softmax=lambda x: torch.cat([reference.softmax(x)[:2], torch.empty(2, 6)]))
    verdict = judge(softmax_case(), half)
    assert math.isnan(verdict.max_error)
    assert verdict.mistakes == ["unwritten outputs"]
    assert "12 of 24 elements still hold" in " ".join(verdict.diagnosis)
    assert torch.get_deterministic_debug_mode() == before
    with calling.poisoned_memory():
        assert bool(torch.isnan(torch.empty(7)).all())


@pytest.mark.parametrize(
    ("behind", "inside", "says", "not_said"),
    [
        (True, False, "1 of 24 elements come from outside an input", "inf - inf"),
        (False, True, "6 elements are NaN: inf - inf", "outside"),
        (True, True, "1 of 24 elements come from outside an input, .* 6 elements are NaN: inf - inf", "a read outside"),
    ],
)
def test_a_gpu_makes_one_nan_of_all_and_a_finite_fill_tells_them_apart(behind, inside, says, not_said) -> None:
    of_a_gpu = nan_of(0x7FFFFFFF)  # the NaN that a GPU's arithmetic returns for any NaN

    def softmax(x: torch.Tensor) -> torch.Tensor:
        y = reference.softmax(x)
        if inside:
            y[0] += torch.inf - torch.tensor(torch.inf)
        if behind:
            y[3, 5] += torch.as_strided(x, (1,), (1,), x.storage_offset() + 24)[0]
        return torch.where(torch.isnan(y), of_a_gpu, y)

    told = " ".join(judge(softmax_case(), fake_operators(softmax=softmax)).diagnosis)
    assert re.search(says, told) and not_said not in told, told


def test_what_must_not_be_read_of_an_input_is_told_as_well() -> None:
    def inputs(generator: torch.Generator) -> dict[str, torch.Tensor]:
        x = torch.randn(4, 6, generator=generator)
        x[:, 5] = nan_of(UNUSED_BITS)
        return {"x": x}

    def right(x: torch.Tensor) -> torch.Tensor:
        return reference.softmax(x[:, :5])

    def reads_all(x: torch.Tensor) -> torch.Tensor:
        y = right(x) + torch.tensor([0, 0, 0, 1.0])[:, None] * x[:, 5:].nan_to_num(0)
        return torch.where(x[:, 5:].isnan() & (torch.arange(4) == 3)[:, None], nan_of(0x7FFFFFFF), y)

    told = " ".join(judge(softmax_case(inputs=inputs, reference=right), fake_operators(softmax=reads_all)).diagnosis)
    assert "5 of 20 elements come from a part of an input that must not be read" in told, told


def test_fresh_shared_memory_holds_other_bytes_for_the_second_inputs() -> None:
    """fmaxf swallows a NaN, but not a large number."""
    seen = []

    class Watched(calling.InProcess):
        def call(self, case, inputs, around=calling.POISONED):
            seen.append(around.large)
            return super().call(case, inputs, around)

    assert judge(softmax_case(), Watched(fake_operators(softmax=reference.softmax))).ok
    assert seen == [False, True]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_inf_never_pass(value: float) -> None:
    def one_bad(x):
        out = reference.softmax(x)
        out[3, 5] = value
        return out

    assert judge(softmax_case(floor=1e30), fake_operators(softmax=one_bad)).status == "FAIL"


def test_infinite_references_must_be_met() -> None:
    log = softmax_case(reference=lambda x: torch.where(x > 0, math.inf, x))
    assert judge(log, fake_operators(softmax=lambda x: torch.where(x > 0, math.inf, x))).ok
    assert not judge(log, fake_operators(softmax=torch.clone)).ok


@pytest.mark.parametrize("times", [0.5, 1.5])
def test_the_bound_is_twice_pytorchs_error_plus_the_floor(times: float) -> None:
    case = softmax_case(floor=1e-3)
    ref, bound = judging.oracle(case, judging.make_inputs(case, seed=0))
    noise = float((reference.softmax(judging.make_inputs(case, 0)["x"]) - ref).abs().max())
    assert bound == pytest.approx(2 * noise + 1e-3)
    verdict = judge(case, fake_operators(softmax=lambda x: reference.softmax(x) + times * 1e-3))
    assert verdict.ok == (times < 1)


def test_inputs_must_be_left_alone() -> None:
    verdict = judge(softmax_case(), fake_operators(softmax=lambda x: x.copy_(reference.softmax(x)).clone()))
    assert verdict.diagnosis == ["The input x was changed; the operator must only read it."]
    in_place = softmax_case(in_place=("x",))
    assert judge(in_place, fake_operators(softmax=lambda x: x.copy_(reference.softmax(x)))).ok


def test_memory_around_the_inputs_is_guarded() -> None:
    def write_behind(x):
        x.as_strided((1,), (1,), x.storage_offset() + x.numel()).fill_(0)
        return reference.softmax(x)

    def read_behind(x):
        return reference.softmax(x) + 0 * x.as_strided((1,), (1,), x.storage_offset() + x.numel())

    verdict = judge(softmax_case(), fake_operators(softmax=write_behind))
    assert "Memory before or after the input x was written to" in verdict.diagnosis[0]
    assert math.isnan(judge(softmax_case(), fake_operators(softmax=read_behind)).max_error)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda x: reference.softmax(x).T, "shape [6, 4]; it must be [4, 6]"),
        (lambda x: reference.softmax(x).double(), "dtype torch.float64; it must be torch.float32"),
        (lambda x: reference.softmax(x).to("meta"), "is on meta"),
        (lambda x: None, "returned NoneType"),
    ],
)
def test_shape_dtype_and_device_are_checked(wrong, says: str) -> None:
    verdict = judge(softmax_case(), fake_operators(softmax=wrong))
    assert verdict.status == "FAIL"
    assert says in verdict.diagnosis[0]


def test_a_result_kept_from_the_previous_call_is_stale() -> None:
    kept = []

    def remembers(x):
        kept.append(reference.softmax(x))
        return kept[0]

    verdict = judge(softmax_case(), fake_operators(softmax=remembers))
    assert verdict.status == "FAIL"
    assert verdict.mistakes == ["stale output"]


def test_a_wrong_result_that_varies_is_a_race() -> None:
    noise = torch.Generator().manual_seed(0)
    verdict = judge(softmax_case(), fake_operators(softmax=lambda x: torch.rand(x.shape, generator=noise)))
    assert verdict.mistakes[0] == "changes from run to run"
    assert "without a barrier between them" in verdict.diagnosis[0]


@pytest.mark.parametrize("second", [lambda x: torch.ones(3), lambda x: None, lambda x: x.double()])
@pytest.mark.parametrize("first", [torch.ones_like, lambda x: torch.full_like(x, torch.nan)])
def test_an_output_of_another_form_at_a_further_call_costs_the_case_alone(first, second) -> None:
    calls = []

    def changes(x):
        calls.append(x)
        return (second if len(calls) > 1 else first)(x)

    assert judge(softmax_case(), fake_operators(softmax=changes)).status == "FAIL" and len(calls) > 1


def test_inputs_depend_on_seed_name_and_draw_only() -> None:
    one, other = softmax_case(), softmax_case(name="other")
    first = judging.make_inputs(one, 0)["x"]
    assert torch.equal(first, judging.make_inputs(one, 0)["x"])
    for different in (judging.make_inputs(one, 1), judging.make_inputs(one, 0, 1), judging.make_inputs(other, 0)):
        assert not torch.equal(first, different["x"])


def test_an_unfilled_gap_is_reported_with_its_line() -> None:
    def gap(x):
        raise NotImplementedError(
            "task2 softmax is not implemented yet: task2/attention_kernel.cu:57 in softmax_kernel"
        )

    verdict = judge(softmax_case(), fake_operators(softmax=gap))
    assert verdict.status == "not implemented"
    assert verdict.file_line == "task2/attention_kernel.cu:57"
    status, text = printed([softmax_case()], fake_operators(softmax=gap))
    assert status == 1
    assert "not implemented" in text and "task2/attention_kernel.cu:57" in text and "Points: 0 of 1" in text


def test_a_gap_in_python_is_reported_with_its_line() -> None:
    def gap(x):
        raise NotImplementedError

    verdict = judge(softmax_case(), fake_operators(softmax=gap))
    assert verdict.status == "not implemented"
    assert verdict.file_line == f"tests/common/testing/test_judging.py:{gap.__code__.co_firstlineno + 1}"
    assert "gap is not implemented yet" in verdict.diagnosis[0]


def test_an_error_is_told_and_does_not_stop_the_other_cases() -> None:
    def diverges(x):
        raise RuntimeError("softmax_kernel: block (0,0,0): 32 threads wait at attention_kernel.cu:71\nand 224 returned")

    both = [softmax_case(), CASES["A B, K = 1"]]
    status, text = printed(both, fake_operators(softmax=diverges))
    assert status == 1
    assert "32 threads wait at attention_kernel.cu:71" in text and "and 224 returned" in text
    assert "pass" in text
    assert judge(both[0], fake_operators(softmax=diverges)).file_line == "attention_kernel.cu:71"


def test_after_a_cuda_error_that_sticks_the_rest_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def fails(case, ops, seed):
        ran.append(case.name)
        return Verdict(case, ERROR, said=["an illegal memory access was encountered"])

    monkeypatch.setattr("common.testing.judging.judge", fails)
    monkeypatch.setattr("common.testing.run.gpu_is_lost", lambda: True)
    lost = SimpleNamespace(device=torch.device("cuda"))
    status, text = printed([softmax_case(), softmax_case(name="second")], lost)
    assert status == 1
    assert ran == ["small"]
    assert "not run" in text and "The GPU refuses all work" in text


def test_after_a_kernel_that_does_not_end_the_rest_of_its_part_is_not_run() -> None:
    def never_ends(x):
        ran.append(x.shape)
        raise RuntimeError("no progress for a long time: an endless loop?\n  in kernel softmax_kernel, block (0,0,0)")

    ran: list = []
    status, text = printed(
        [softmax_case(), softmax_case(name="second"), CASES["A B, K = 1"]], fake_operators(softmax=never_ends)
    )
    assert status == 1
    assert len(ran) == 1
    assert "not run" in text and "did not end" in text and "pass" in text


def test_a_run_that_passes_prints_every_case_and_the_points() -> None:
    status, text = printed(cases(), fake_operators())
    assert status == 0
    assert all(name in text for name in CASES)
    assert "Points: 3 of 3" in text
    assert "FAIL" not in text


def test_parts_choose_cases() -> None:
    status, text = printed(cases(), fake_operators(), parts=["attention"])
    assert status == 0
    assert "113 x 203" not in text and "Points: 1 of 1" in text
    with pytest.raises(ValueError, match="no test case"):
        printed(cases(), fake_operators(), parts=["tensor cores"])


def test_a_part_earns_nothing_until_its_required_cases_pass() -> None:
    basic, edge = softmax_case(required=True), softmax_case(name="edge", points=0.5)
    assert points_of([Verdict(basic, "pass"), Verdict(edge, "FAIL")]) == (1.0, 1.5)
    assert points_of([Verdict(basic, "FAIL"), Verdict(edge, "pass")]) == (0.0, 1.5)


def test_alike_failures_are_told_once() -> None:
    _, text = printed(cases(), fake_operators(attention=lambda q, k, v, c, s=None: torch.zeros_like(q)))
    assert text.count("Every output is 0") == 1
    assert "The same holds for: causal" in text


def test_task2_has_the_points_it_should_and_its_parts() -> None:
    points = {part: sum(case.points for case in cases() if case.part == part) for part in PARTS}
    assert points == pytest.approx({"row-sums": 0.2, "softmax": 0.8, "gemm": 1, "attention": 1})
    assert len(CASES) == len(cases())
    with pytest.raises(ValueError, match="GPU only"):
        softmax_case(gpu_only=True)
    assert judge(softmax_case(gpu_only=True, points=0.0), fake_operators()).status == "skipped"

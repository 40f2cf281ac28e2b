"""Single edits: which are generated from a text, and which of them make a real kernel's failing cases pass."""

from __future__ import annotations

import importlib
import io
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from planted import text_with
from rich.console import Console

from common.cli import tried_edits
from common.cli.failing_cases import print_diagnosis
from common.cli.tried_edits import with_edits
from common.compiling.load import load
from common.compiling.places import places_of
from common.compiling.request import BuildRequest
from common.compiling.variant import Variant
from common.console.files import write_whole
from common.console.paths import build_root
from common.diagnosis.single_edits import Edit, edits_in, switched
from common.inspect.findings.model import EDIT, Access, Finding, grouped
from common.inspect.source_lines import Place
from common.source.reader import Source
from common.testing.case import FAIL
from common.testing.judging import judge

KERNEL = """\
constexpr int TILE = 32;
__device__ void helper(float& out, float x) { out = x; }
__global__ void kernel(const float* a, const float* b, float* out, int rows, int cols, float scale) {
    constexpr int FIXED = TILE + 1;
    __shared__ float tile[TILE][FIXED];
    const int row = blockIdx.x * TILE + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int col = 0; col < cols; ++col) sum += a[row * cols + col] * expf(scale - sum);
    tile[threadIdx.x][row] = fmaxf(sum, scale);
    helper(sum, scale);
    out[row] = row < cols ? sum : b[row];
}
"""
LOOPS = """\
__global__ void kernel(const float* x, float* out, int* counts, int64_t rows, int64_t S_q, int64_t S_k, float scale) {
    const int lane = threadIdx.x % 32;
    int64_t q = 0, k = 0, count = 0;
    q = lane % S_q;
    k = lane / S_q % S_k;
    float sum = expf(x[q]);
#pragma unroll
    for (int i = lane; i < rows; i += 32) sum += x[i] + expf(x[i] * scale) + scale;
    q = k;
    const int64_t twice = 2 * q;
    if (lane < S_k) {
        counts[lane] = count;
        count += twice;
    }
    for (int i = 0; i < S_k; ++i) {
        sum = sum * scale + x[i];
        sum *= scale;;
    }
    helper(out, rows, S_q * S_k);
    if (static_cast<uint64_t>(q - k) < static_cast<uint64_t>(rows)) out[static_cast<int>(rows * q)] = sum;
    out[lane] = q + lane < rows && k + static_cast<int>(threadIdx.x) < S_k ? sum : expf(x[k]) + scale;
}
"""


TILED = """\
constexpr float SCALE = 2.0f;
constexpr int ROW = 4;  // warp_sum adds up the lanes
struct Tiles {
    static constexpr int HEIGHT = 2, WIDTH = 3;
    static constexpr int STRIDE = WIDTH + 1;
};
struct State {
    float m, l;
};
template <typename T>
__global__ void kernel(const float* x, float* out, State state, int head, int heads, int start, int end, float bias) {
    const float m = fmaxf(state.m, x[0] * SCALE / FROM_HEADER * ROW);
    const int lane = threadIdx.x % 32;
    float sum = expf(state.m);
    for (int i = lane; i < end; i += 32) {
        const float one = x[i * T::STRIDE + head] + x[(i + 1) * T::STRIDE];
        out[i] = (one - m) * bias;
        sum += state.l;
        sum *= one;
    }
    out[0] = sum + m;
}
"""


def edits_of(code: str):
    source = Source("kernel.cu", code)
    return edits_in(source, {"kernel"}, None)


@pytest.mark.parametrize(
    "says",
    [
        "with `row > rows` in place of `row >= rows`",
        "with `row >= rows - 1` in place of `row >= rows`",
        "with `row >= rows` always false",
        "with `b` in place of `a`",
        "with `cols * row` in place of `row * cols`",
        "with `row * (cols + col)` in place of `row * cols + col`",
        "with `exp2f(scale - sum)` in place of `expf(scale - sum)`",
        "with `scale` in place of `scale - sum`",
        "with `fmaxf(scale, sum)` in place of `fmaxf(sum, scale)`",
        "with `fminf(sum, scale)` in place of `fmaxf(sum, scale)`",
        "with `tile[row][threadIdx.x]` in place of `tile[threadIdx.x][row]`",
        "with `b[row]` in place of `row < cols ? sum : b[row]`",
        "with `sum = a[row * cols + col] * expf(scale - sum)` in place of "
        "`sum += a[row * cols + col] * expf(scale - sum)`",
        "without `helper(sum, scale);`",
        "with lines 10 and 11 exchanged",
        "with index `cols` in place of `row` everywhere in `out[row] = row < cols ? sum : b[row];`",
    ],
)
def test_an_edit_of_each_kind_is_made(says: str) -> None:
    assert says in [one.says for one in edits_of(KERNEL)]


@pytest.mark.parametrize(
    "says",
    [
        "with `k` and `q`, `S_k` and `S_q` exchanged in lines 4 to 5",
        "with `sum = 0;` in front of line 8",
        "with a loop from `threadIdx.x` in steps of `blockDim.x` in place of one from `lane` in steps of `32`",
        "with `expf(x[i]) * scale` in place of `expf(x[i] * scale)`",
        "with lines 9 and 10 exchanged",
        "with a loop in steps of `32` in place of `if (lane < S_k)`",
        "with `count += twice;` after the block of `if (lane < S_k)` and not in it",
        "with `i == 0 ? sum * scale : sum` in place of `sum * scale`",
        "with `(lane + S_q - 1) / S_q` in place of `lane / S_q`",
        "with `(2 * q) > 0 ? 2 * q : 0` in place of `2 * q`",
        "with `sum *= i == 0 ? scale : 1` in place of `sum *= scale`",
        "with a loop from `threadIdx.x % 32` in steps of `32` in place of one from `0` in steps of `1`",
        "with `helper(out, rows * S_q, S_k)` in place of `helper(out, rows, S_q * S_k)`",
        "with `static_cast<int64_t>(q - k) < static_cast<int64_t>(rows)` in place of "
        "`static_cast<uint64_t>(q - k) < static_cast<uint64_t>(rows)`",
        "with `std::clamp<int64_t>(rows * q, -(1 << 30), 1 << 30)` in place of `static_cast<int>(rows * q)`",
        "with `q + threadIdx.x < rows && k + static_cast<int>(lane) < S_k` in place of "
        "`q + lane < rows && k + static_cast<int>(threadIdx.x) < S_k`",
        "with `expf(x[k] + scale)` in place of `expf(x[k]) + scale`",
        "with `&& k < rows` added to `if (lane < S_k)`",
    ],
)
def test_an_edit_of_each_kind_is_made_of_loops_and_conditions(says: str) -> None:
    assert says in [one.says for one in edits_of(LOOPS)]


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        ("with `m` in place of `state.m`", "name"),
        ("with `one * bias - m` in place of `(one - m) * bias`", "brackets"),
        ("with `sum += state.l;` in front of the loop in line 15 and not in it", "statement"),
        ("with a loop from `lane + start` in place of one from `lane`", "loop"),  # it is used nowhere else
        ("with a loop from `lane + head` in place of one from `lane`", "more"),
        ("with `(sum / FROM_HEADER)` in place of `sum`", "unit"),
        ("with `(sum * SCALE)` in place of `sum`", "unit"),
        ("with `(head % heads)` in place of `head`", "index"),
        ("with `warp_sum(sum)` in place of `sum`", "function"),
        ("with `T::WIDTH` in place of `T::STRIDE` in line 16", "name"),
    ],
)
def test_an_edit_of_each_kind_is_made_of_what_belongs_together(says: str, kind: str) -> None:
    assert (says, kind) in [(one.says, one.kind) for one in edits_of(TILED)]


def test_a_quotient_of_integers_in_a_float_is_divided_as_one() -> None:
    every = edits_of("__global__ void kernel(float* out, float x) { out[0] = 1 / 2 * x; }")
    assert "with `1.0f / 2 * x` in place of `1 / 2 * x`" in [one.says for one in every]


def test_what_would_change_nothing_else_is_no_edit() -> None:
    """A loop's variables can't be used before it, and an integer is no unit."""
    every = edits_of(TILED)
    assert not any("`sum *= one;` in front" in one.says for one in every)
    assert not any("ROW" in one.says.split("`")[1] for one in every if one.kind == "unit")


def test_constants_and_declarations_stay() -> None:
    assert {one.line for one in edits_of(KERNEL)}.isdisjoint({1, 2, 3, 4, 5})


@pytest.mark.parametrize("kernel", [KERNEL, LOOPS, TILED])
def test_every_edit_has_a_line_of_its_own_and_without_one_the_text_is_the_same(kernel: str) -> None:
    edits = dict(enumerate(edits_of(kernel), 1))
    text, at = switched(kernel, edits)
    assert set(at.values()) == set(edits) and len(at) == sum(len(one.changes) for one in edits.values())
    left = re.sub(r"\nchosen_edit == \d+ \? static_cast<.*?>>?\(.*\) :\n", "", text)
    left = re.sub(r"\nif \(\nchosen_edit == \d+\) \{.*\}( else)?\n", "", left)
    assert "".join(re.sub(r"[(){}+\s]", "", left)) == "".join(re.sub(r"[(){}+\s]", "", kernel))


# ---- real kernels


@dataclass(frozen=True)
class Planted:
    """A mistake in a solution: the original text and its replacement; the report."""

    task: str
    part: str
    right: str
    wrong: str
    says: str = ""


GELU = "0.5f * x * (1.0f + tanhf(SQRT_2_OVER_PI * (x + 0.044715f * x * x * x)))"
PLANTED = {
    "brackets": Planted(
        "task7", "gelu", "SQRT_2_OVER_PI * (x + 0.044715f * x * x * x)", "SQRT_2_OVER_PI * x + 0.044715f * x * x * x",
        r"With `SQRT_2_OVER_PI \* \(x \+ 0.044715f \* x \* x \* x\)` in place of `.*`, all 7 failing cases of gelu",
    ),
    "no edit helps": Planted("task7", "gelu", GELU, "2.0f * x * (1.0f + tanhf(x + 0.044715f * x * x * x))"),
    "a name": Planted(
        "task1", "output", "row / S_q * S_k", "row / S_k * S_k",
        "With `row / S_q` in place of `row / S_k`, all 3 failing cases of output pass",
    ),
    "a launch": Planted(
        "task1", "output", "blocks_for(batch_heads * S_q * head_dim)", "blocks_for(batch_heads * S_q * S_k)",
        "With `head_dim` in place of `S_k`, both failing cases of output pass",
    ),
    "a term": Planted(
        "task3", "merge", "((start + i) * rows + row)", "(i * rows + row)",
        r"With `\(i \+ start\)` in place of `i`, both failing cases of merge pass",
    ),
    "a condition": Planted(
        "task2", "softmax", "partial[threadIdx.x] = row_sum;",
        "if (static_cast<int>(threadIdx.x) < cols) partial[threadIdx.x] = row_sum;",
        r"With `static_cast<int>\(threadIdx.x\) < cols` always true, all 5 failing cases of softmax pass",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fewer_edits_and_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tried_edits, "MOST_EDITS", 1000)
    monkeypatch.setattr(tried_edits, "MOST_SECONDS", 1000.0)
    monkeypatch.setattr(tried_edits, "MOST_IN_ALL", 1000.0)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[] if one == "brackets" else [pytest.mark.slow]) for one in PLANTED]
)
def test_the_edit_that_makes_failing_cases_pass_is_told(name: str) -> None:
    planted = PLANTED[name]
    line, _, every = _told(planted)
    groups = [one for one in every[planted.part] if one.kind == EDIT]
    if not planted.says:
        assert groups == []
        return
    (finding,) = groups[0].findings
    assert re.search(planted.says, finding.detail), finding.detail
    assert len(finding.lines) == 1 and line in [one.line for one in finding.lines]


def test_of_two_lines_both_are_told_and_what_two_edits_of_one_line_leave_open() -> None:
    edits = {
        Edit("a.cu", line, "operator", f"with `{new}` in place of `-`", ()): [] for line, new in ((3, "+"), (7, "*"))
    }
    failures = [SimpleNamespace(case=SimpleNamespace(part="scores"), status=FAIL)] * 2
    said = tried_edits.said(edits, failures, 2, {}, {}).finding.detail
    assert said.startswith("With `+` in place of `-`, both failing cases of scores pass. They also pass with `*` in")
    assert "in place of `-` in line 7. The repair may be another" in said
    del edits[next(one for one in edits if one.line == 7)]
    assert tried_edits.said(edits, failures, 2, {}, {}).finding.detail.endswith("both failing cases of scores pass.")
    edits[Edit("a.cu", 3, "unit", "with `(x / SCALE)` in place of `x`", ())] = []
    assert tried_edits.said(edits, failures, 2, {}, {}).finding.detail.endswith(
        "The repair may be another one, there or nearby."
    )


@pytest.mark.slow
def test_of_a_known_mistake_the_line_comes_below_its_sentence() -> None:
    right = "k = index % S_k;\n    q = index / S_k % S_q;\n    batch_head = index / S_k / S_q;"
    wrong = "q = index % S_q;\n    k = index / S_q % S_k;\n    batch_head = index / S_q / S_k;"
    line, verdicts, inside = _told(Planted("task1", "scores", right, wrong))
    screen = Console(file=io.StringIO(), width=120)
    print_diagnosis(screen, verdicts, inside)
    says = r"With `k` and `q`, `S_k` and `S_q` exchanged in lines \d+ to \d+, all \d failing cases of scores pass\."
    place = rf"  -> \S*naive_attention\.cu:{line}\n +q = index % S_q;\n  "
    assert re.search(rf"Each output matrix comes .*\n.*\n{place}{says}\n  \d+ of", screen.file.getvalue())


def _told(planted: Planted) -> tuple[int, Sequence, Mapping]:
    """The line with the mistake, the verdicts, and the edits found; a finding is at that line and the two before."""
    (source,) = places_of(planted.task, Variant.SOLUTION)[0].kernels
    text = source.read_text()
    line = text[: text.index(planted.right)].count("\n") + 1
    label = f"edited_{planted.task}_{zlib.crc32(planted.wrong.encode()):08x}"  # two may be in one line
    file = build_root() / label / planted.task / source.name
    write_whole(file, text_with(source, [(planted.right, planted.wrong)]))
    ops = load(BuildRequest(planted.task, backend="simulator", sources=[file], label=label))
    test = importlib.import_module(f"{planted.task}.test").TEST
    cases = [one for one in test.cases(Variant.SOLUTION) if one.part == planted.part and not one.gpu_only]
    verdicts = [judge(one, ops) for one in cases]
    assert not all(one.ok for one in verdicts)
    accesses = tuple(Access("read", 4, Place(str(file), number)) for number in range(line - 2, line + 1))
    inside = {planted.part: grouped([("", [Finding("uninitialized", accesses=accesses)])])}
    return line, verdicts, with_edits(Console(file=io.StringIO()), verdicts, inside, ops, 0, test.built_of)

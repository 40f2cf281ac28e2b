"""The mutation study: what each rule makes of a text, which mutants exist, and the grounds of a verdict."""

import re
from collections import Counter

import pytest
import torch
from building import mutated
from code_tree import gap_of, without_comments
from judge import CAUGHT, EQUIVALENT, MISLED, MISSED, NAMED, NEAR, OF_KIND, Decision, decided, targets, topics_of
from mutants import MOST_ALIKE, PLANTED, Mutant, equivalent, gaps_of, mutants_of, planted_of
from observing import Claim, Observation
from planting import planted_text, spots_of, widened
from rules import mutations
from rules_told import rule_of, rules
from study import main
from tables import COLUMNS, by_family, hits_of, never_decide, of_hits, of_verdicts, summary

from common.compiling.manifest import tasks
from common.compiling.skeletons import solution_files
from common.console.paths import ROOT
from common.diagnosis.mistakes.gemm import gemm_mistakes
from common.diagnosis.mistakes.known import any_mistakes
from common.inspect.findings.words import OR_THE_ORDER

HEAD = """\
constexpr int TILE = 32;
constexpr int TILE_ROWS = 8;
__global__ void __launch_bounds__(TILE) kernel(
    const float* query, const float* key, float* out, int rows, int cols, int S_q, int S_k) {
    __shared__ float partial[TILE];
    const int lane = threadIdx.x % 32, row = blockIdx.x;
    const bool seen = row < rows;
    float sum = 0.0f, shift = 1.0f;
    State state = {-INFINITY, 0.0f};
    int q = 0;
"""
DEF = "def f(query: Tensor, key: Tensor, S: Tensor, O: Tensor, k_start: int, B_c: int, scale: float, causal: bool):\n"
LINES = ["", "for (int k = 0; k < K; ++k) {", "    sum += a[k] * b[k];", "}", "out[0] = sum;"]

# (code, kind, old text, new text)
IN_C = [
    ("__syncthreads();", "barrier", "__syncthreads();", ""),
    ("__syncthreads();", "barrier", "__syncthreads();", "if (lane == 0) __syncthreads();"),
    ("__syncthreads();", "leaving", "__syncthreads();", "if (threadIdx.x >= 128) return; __syncthreads();"),
    ("f(out); __syncthreads();", "barrier", "f(out); __syncthreads();", "__syncthreads(); f(out);"),
    ("for (int i = 0; i < 2; ++i) { f(i); __syncthreads(); }", "barrier",
     "for (int i = 0; i < 2; ++i) { f(i); __syncthreads(); }",
     "for (int i = 0; i < 2; ++i) { f(i);  } __syncthreads();"),
    ("for (int k0 = 0; k0 < K; k0 += TILE) f(k0);", "loop", "k0 < K", "k0 < K - 1"),
    ("for (int k0 = 0; k0 < K; k0 += TILE) f(k0);", "loop", "k0 += TILE", "++k0"),
    ("for (int col = lane; col < width; col += 32) f(col);", "loop", "lane", "0"),
    ("for (int i = 0; i < cols; i += 32) f(i);", "loop", "0", "0 + 32"),
    ("for (int i = 0; i < cols; ++i) f(i);", "loop", "++i", "i += 2"),
    ("for (int i = 0; i < cols; ++i) sum += query[i];", "leaving", "sum += query[i];", "{ sum += query[i]; break; }"),
    ("for (int i = 0; i < 2; ++i) { if (i > row) break; f(i); }", "leaving", "break;", "continue;"),
    ("const bool inside = row < rows && col < cols;", "bound", "row < rows && col < cols", "row < rows"),
    ("if (seen && row < cols) out[row] = sum;", "bound", "seen", "!seen"),
    ("if (index >= rows) return;", "guard", "index >= rows", "false"),
    ("if (lane == 0) out[row] = sum;", "guard", "lane == 0", "true"),
    ("const float f = sum == 0.0f ? 0.0f : 1.0f / sum;", "guard", "sum == 0.0f ? 0.0f : 1.0f / sum", "1.0f / sum"),
    ("sum += tile[row][k];", "index", "tile[row][k]", "tile[k][row]"),
    ("sum += query[row];", "index", "row", "row + 1"),
    ("f(rows);", "index", "rows", "rows + 1"),
    ("const int64_t r = index / cols;", "index", "index / cols", "index % cols"),
    ("const int i = row / cols % rows;", "index", "row / cols % rows", "row % rows / cols"),
    ("x = y[row * cols + col];", "index", "row * cols + col", "(row + col) * cols"),
    ("x = y[row * cols + col];", "offset", "row * cols + col", "col"),
    ("const float* p = query + q * cols;", "offset", "query + q * cols", "query"),
    ("const int q0 = batch_head * S_q;", "head", "batch_head", "0"),
    ("sum += a * b;", "adding", "sum += a * b;", "sum = a * b;"),
    ("out[row] = sum;", "adding", "out[row] = sum;", "out[row] += sum;"),
    ("out[row] = sum;", "store", "out[row] = sum;", "if (threadIdx.x == 0) out[row] = sum;"),
    ("state.l[r] *= rescale;", "rescale", "state.l[r] *= rescale;", ""),
    ("y = expf(x[row]) * inverse_sum;", "rescale", "expf(x[row]) * inverse_sum", "expf(x[row])"),
    ("out[row] = expf(x[row] - shift);", "sign", "x[row] - shift", "x[row] + shift"),
    ("m = fmaxf(m, x[row]);", "extremum", "fmaxf(m, x[row])", "fminf(m, x[row])"),
    ("block_reduce(partial, Max());", "extremum", "block_reduce(partial, Max());", "block_reduce(partial, Sum());"),
    ("float m = -INFINITY;", "initial", "-INFINITY", "0.0f"),
    ("sum = 1.0f / shift;", "constant", "1.0f", "0.0f"),
    ("const int64_t at = static_cast<int64_t>(row) * cols;", "cast", "static_cast<int64_t>(row)", "(row)"),
    ("kernel<<<blocks, THREADS, BYTES, stream>>>(query, rows);", "launch", "BYTES", "BYTES / 2"),
    ("kernel<<<rows, TILE, 0, stream>>>(query, key);", "call", "kernel<<<rows, TILE, 0, stream>>>(query, key);", ""),
    ("sum += query[row];", "operands", "query", "key"),
    ("out[row] = state.m;", "operands", "state.m", "state.l"),
    ("load(out, rows, cols);", "operands", "load(out, rows, cols)", "load(out, cols, rows)"),
    ("const int i = threadIdx.x;", "thread", "threadIdx.x", "blockIdx.x"),
    ("sum += expf(shift);", "function", "expf(shift)", "exp2f(shift)"),
    ("f(out); sum += out[row];", "order", "f(out); sum += out[row];", "sum += out[row]; f(out);"),
]  # fmt: skip
IN_PYTHON = [
    ("future = ones.triu(diagonal=1)", "constant", "1", "0"),
    ("S = S.masked_fill(keys > queries, -torch.inf)", "bound", "keys > queries", "keys >= queries"),
    ("S = S.masked_fill(keys > queries, -torch.inf)", "guard", "S.masked_fill(keys > queries, -torch.inf)", "S"),
    ("S = S.masked_fill(keys > queries, -torch.inf)", "initial", "-torch.inf", "0.0"),
    ("O = O * rescale", "rescale", "O * rescale", "O"),
    ("S = query @ key", "operands", "query @ key", "key @ query"),
    ("x = query @ key", "operands", "query", "key"),
    ("x = k_start + B_c", "index", "k_start + B_c", "k_start - B_c"),
    ("x = k_start if causal else B_c", "bound", "k_start if causal else B_c", "B_c if causal else k_start"),
    ("if causal:\n        x = 1", "bound", "causal", "not causal"),
    ("for i in range(0, B_c, k_start):\n        f(i)", "loop", "range(0, B_c, k_start)", "range(0, B_c - 1, k_start)"),
    ("for i in range(0, B_c, k_start):\n        f(i)", "leaving", "f(i)", "f(i)\n        break"),
    ("cache.append(key)", "adding", "cache.append(key)", "cache.append(key)\n    cache.append(key)"),
    ("query[:] = key", "adding", "query[:] = key", "query[:] += key"),
    ("cache.reset()\n    cache.append(key)", "order", "cache.reset()\n    cache.append(key)",
     "cache.append(key)\n    cache.reset()"),
]  # fmt: skip


def made(code: str, in_python: bool = False) -> list[tuple[str, str, str]]:
    head = DEF if in_python else HEAD
    text = f"{head}    {code}\n" + "}\n" * (not in_python)
    found = mutations(text, len(head), len(head) + len(code) + 5, in_python)
    return [(kind, text[start:end].strip(), new) for start, end, kind, new, _ in found]


@pytest.mark.parametrize("rows", [IN_C, IN_PYTHON], ids=["cuda", "python"])
def test_what_the_rules_make_of_code(rows: list[tuple]) -> None:
    for code, *mutation in rows:
        assert tuple(mutation) in made(code, in_python=rows is IN_PYTHON), code


def test_what_changes_nothing_or_does_not_compile_is_left_out() -> None:
    """The order of two independent statements doesn't matter, and a maximum takes any order."""
    assert made("asm volatile(@ !);") == [] and made("float4 k[KEYS];") == []
    assert "order" not in {kind for kind, _, _ in made("out[row] = sum; shift = 2.0f;")}
    assert "operands" not in {kind for kind, old, _ in made("sum = fmaxf(sum, shift);") if "fmaxf" in old}
    assert "leaving" not in {kind for kind, _, _ in made("if (row < rows) out[row] = sum;")}
    assert all("lane == 0) out" not in new for _, _, new in made("if (lane == 0) out[row] = sum;"))
    assert all(old != "q" for kind, old, _ in made("q = row % S_q;") if kind == "operands")  # an assignment's target
    over = made("for (int col = 0; col < cols; ++col) f(col);\n    int at = 0;\n    g(at);")
    assert ("operands", "at", "col") not in over and ("operands", "at", "row") in over


def test_a_place_knows_what_is_declared_before_it_and_around_it() -> None:
    code = "    for (int i = 0; i < 2; ++i) {\n        float inner = 1.0f;\n    }\n    float after;\n    f();\n"
    loop, _, call = gap_of(f"{HEAD}{code}}}\n", len(HEAD), len(HEAD) + len(code)).body
    inside, behind = loop.body[0].body[0].types, call.types
    assert inside["i"] == "int" and "i" not in behind and "inner" not in behind
    assert behind["after"] == "float" and behind["query"] == "const float*" and behind["out"] == "float*"
    assert behind["partial"] == "shared float[TILE]" and behind["row"] == "int" and behind["seen"] == "bool"


def test_lines_keep_their_numbers_and_places_that_cross_become_one() -> None:
    text = "f();\n#pragma unroll\nfor (;;) {\n    g(a,\n      b);  // why\n}\nh();\n"
    start = text.index("\n#pragma")
    spots = [(1, start, text.index("\nh"), "x();\ny();"), (2, text.index("g("), text.index(");  //") + 2, "")]
    changed = planted_text(without_comments(text), spots_of(spots)).split("\n")
    assert len(changed) == text.count("\n") + 1 and changed[1] == "#pragma unroll"
    assert "if (planted(1)) { x(); y(); } else {" in changed[0]
    text = "{ a(); b(); for (;;) { c(); } d(); }"  # the first two and the last two are swapped
    first, second, third = (text.index(letter) for letter in "abc")
    ends = text.index(" for"), text.index(" d")
    replaced = [(1, first, ends[0], "b(); a();"), (2, second, ends[1], "for (;;) { c(); } b();")]
    wide = widened([*replaced, (3, third, third + 3, "e()")], text)
    assert wide[0] == (1, first, ends[1], "b(); a(); for (;;) { c(); }")
    assert wide[1] == (2, first, ends[1], "a(); for (;;) { c(); } b();")
    assert "else { a(); b(); for (;;) { (planted(3) ? (e()) : (c())); } }" in planted_text(text, spots_of(wide))


@pytest.mark.parametrize("task", tasks())
def test_every_gap_has_mutants_and_no_kind_dominates(task: str) -> None:
    every = mutants_of(task)
    counts = Counter((one.file, one.gap, one.kind) for one in every)
    assert len(counts) >= 30 and max(counts.values()) <= MOST_ALIKE
    files = {file.name: file for file in solution_files(task)}
    gaps = {(name, number + 1) for name, file in files.items() for number in range(len(gaps_of(file.read_text())))}
    assert {(one.file, one.gap) for one in every} == gaps
    texts = set()
    for one in every:
        text = files[one.file].read_text()
        changed = mutated(text, one, one.file)
        texts.add((one.file, "".join(changed.split())))
        if one.file.endswith(".py"):
            compile(changed, one.file, "exec")
        else:
            assert changed.count("\n") == text.count("\n")
    assert len(texts) == len(every) == len({one.key for one in every})


def test_every_kind_is_used_and_what_was_reviewed_is_still_there() -> None:
    every = [one for task in tasks() for one in mutants_of(task)]
    assert {one.kind for one in every} | {PLANTED} == set(OF_KIND)
    assert set(equivalent()) <= {one.key for one in every}
    assert all(len(reason) > 20 for reason in equivalent().values())


def test_samples_of_some_tasks(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["--task", "task2,task9"])
    assert "no task is called 'task9'; there are task1, task2" in " ".join(capsys.readouterr().err.split())
    assert main(["--task", "task7,task1", "--sample", "4", "--list"]) == 0
    keys = [line for line in capsys.readouterr().out.splitlines() if re.match(r"task\d/", line)]
    assert [key[:5] for key in keys] == ["task1"] * 4 + ["task7"] * 4


# ---- the grounds of a verdict


def mutant(kind: str = "loop", old: str = "k < K", new: str = "", line: int = 2, function: str = "f") -> Mutant:
    return Mutant("task2", "a.cu", function, 2, 5, kind, old, new, line, LINES[line - 1].strip(), ())


def seen(*claims: Claim, failed: tuple[str, ...] = ("attention",)) -> Observation:
    return Observation([*failed], [*claims])


def claim(kind: str, name: str, says: str = "", line: int = 0) -> Claim:
    return Claim(kind, name, says, (("a.cu", line),) if line else ())


BARRIER = "Put a __syncthreads() between line 2 and line 3."
RIGHT = claim("cause", "last tile dropped", "The loop ends before the last tile.")
FALSE = claim("cause", "K and V swapped", "K and V are swapped.")
MASK = claim("cause", "causal mask missing", "Look at the comparison that hides keys.")
LOOP = mutant(new="k < K - 1")
MOVED = mutant("barrier", "sum += a[k] * b[k]; __syncthreads();", "__syncthreads(); sum += a[k] * b[k];", 3)
ORDER = mutant("order", "use(x); make(x);", "make(x); use(x);", 3)


@pytest.mark.parametrize(
    ("one", "claims", "failed", "verdict"),
    [
        (LOOP, (), (), MISSED),
        (LOOP, (claim("where", "", "It equals none."),), ("attention",), CAUGHT),
        (LOOP, (claim("where", "", "It equals none."),), ("gemm",), NEAR),  # a stage tested alone
        (LOOP, (RIGHT,), ("gemm",), NAMED),
        (LOOP, (FALSE,), ("gemm",), MISLED),
        (LOOP, (RIGHT, FALSE), ("gemm",), MISLED),  # one false cause outweighs a right one
        (LOOP, (claim("finding", "out_of_bounds", "", 3),), ("gemm",), NAMED),  # it uses what the line computes
        (LOOP, (claim("finding", "race", "", 99),), ("gemm",), MISLED),
        (LOOP, (claim("ended", "ended", "a.cu:2: ...", 2),), ("gemm",), NAMED),
        # a claim that a barrier is missing misleads if none is, even at the right line
        (LOOP, (claim("finding", "race", BARRIER, 2),), ("gemm",), MISLED),
        (LOOP, (claim("finding", "race", "Check the index, or put a __syncthreads() there.", 2),), ("gemm",), NAMED),
        (MOVED, (claim("finding", "race", BARRIER, 99),), ("gemm",), NAMED),
        # two statements in the wrong order count as named if the report offers the order
        (ORDER, (claim("finding", "race", BARRIER, 2),), ("gemm",), MISLED),
        (ORDER, (claim("finding", "race", f"{BARRIER} {OR_THE_ORDER}", 3),), ("gemm",), NAMED),
        (LOOP, (claim("finding", "race", f"{BARRIER} {OR_THE_ORDER}", 2),), ("gemm",), MISLED),
        # a claim that says where to look misleads elsewhere, and is near in the function it names
        (LOOP, (MASK,), ("attention",), MISLED),
        (mutant(function="mask_scores"), (MASK,), ("attention",), NEAR),
    ],
)  # fmt: skip
def test_a_verdict_follows_from_the_claims(one: Mutant, claims: tuple[Claim, ...], failed: tuple, verdict: str) -> None:
    assert decided(one, seen(*claims, failed=failed), LINES).verdict == verdict


def test_topics_and_lines_that_count_as_right() -> None:
    assert targets(LOOP, LINES) == {2, 3} and targets(mutant("store", LINES[2].strip(), "", 3), LINES) == {3, 5}
    assert topics_of(MOVED) == {"barrier"}  # the words next to the barrier are irrelevant

    def of_a_number(statement: str) -> set[str]:
        return topics_of(Mutant("task4", "a.cu", "f", 2, 5, "constant", "2", "1", 2, statement, ()))

    assert "index" in of_a_number("v = make_float4(column[0], column[2 * T::D]);")
    assert "index" not in of_a_number("x = 2 * column[2 * T::D];")


def test_shares_leave_out_what_is_equivalent() -> None:
    every = [(LOOP, Decision(verdict, "")) for verdict in (NAMED, NAMED, NEAR, CAUGHT, EQUIVALENT)]
    assert summary(every) == "mutants: 5 named 50% near 25% caught 25% misled 0 missed 0"
    table = "\n".join(of_verdicts(every))
    assert "| task2 | 2 | 1 | 1 |  |  | 1 | 5 |" in table and "| all | 2 |" in table


# ---- rules that decide


def test_every_known_mistake_is_a_rule_and_is_found_again_where_it_was_made() -> None:
    places = {one.place for one in rules()}
    assert {"task6/cases/ring_mistakes.py", "common/diagnosis/mistakes/gemm.py", "the checked build"} <= places
    a, b = torch.ones(1, 40, 40), torch.ones(1, 40, 50)
    made = {one.name: rule_of(one.name, one.says) for one in (*any_mistakes(a), *gemm_mistakes(a, b, False))}
    assert made["all zeros"].place == "common/diagnosis/mistakes/known.py"
    assert made["A read as [K, M]"].name == "{operand} read as [{rows}, {cols}]"
    assert made["A: row = r"].name == "{operand}: {wrong}" and made["last tile dropped"].place.endswith("gemm.py")
    missing = "The causal mask is missing: queries see keys of the future (j > i)."  # two modules have the same text
    assert rule_of("causal mask missing", missing, "task5").place == "task5/cases/block_mistakes.py"
    assert rule_of("causal mask missing", missing, "task2").place.startswith("common/diagnosis/mistakes/")
    assert rule_of("slices never computed").place == "common/diagnosis/slices.py"
    assert rule_of("y = x", "The output matches `y = x`; it should be `y = 2 * x`.").name == "a wrong line"


def test_hits_are_counted_by_what_leads() -> None:
    solution = next(one for one in mutants_of("task2") if one.kind == "barrier")
    race = Claim("finding", "race", BARRIER, ((solution.file, solution.line),), str(rule_of("race")))
    told = Claim("cause", "all zeros", "Every output is 0.", rule="known.py:1  all zeros")
    found = hits_of([(solution, Observation(["gemm"], [race, told], {"known.py:1  all zeros"}))])
    assert found["the checked build  race"] == Counter(COLUMNS) - Counter([NEAR, MISLED])  # it is printed first
    assert found["known.py:1  all zeros"] == Counter(["holds", "told"])
    assert "| the checked build  race | 1 | 1 | 1 | 1 |  |  | 1 |" in of_hits(found)
    assert any(one.startswith("known.py:1  all zeros (holds in 1") for one in never_decide(found))
    family = next(row for row in by_family(found) if row.startswith("| the checked build"))
    assert re.fullmatch(r"\| the checked build \| \d+ \| 1 \| 1 \| 1 \| 1 \|  \|  \|", family)


def test_mistakes_planted_by_hand_are_mutants() -> None:
    every = planted_of("task4")
    assert len(every) >= 40 and len({one.key for one in every}) == len(every)
    for one in every:
        for file, start, end, _ in one.edits:
            assert (ROOT / "task4" / "solution" / file).read_text()[start:end].strip()


@pytest.mark.slow
def test_a_sample_runs_and_nothing_is_missed_or_misled(capsys: pytest.CaptureFixture) -> None:
    """Twelve mutants of task 7, whose kernels build fastest."""
    assert main(["--task", "task7", "--sample", "12", "--seed", "3"]) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert re.fullmatch(r"`mutants: 12 named \d+% near \d+% caught \d+% misled 0 missed 0`", last)

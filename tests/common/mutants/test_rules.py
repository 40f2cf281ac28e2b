"""Each rule of python -m common.mutants on a text: what it makes of it, and where."""

import pytest

from common.compiling.planting import planted_text, spots_of
from common.mutants import c_rules, python_rules
from common.mutants.c_code import statements, without_comments

INT = "void kernel(const float* query, const float* key, int rows, int cols, int S_q, int S_k) {\n    int q = 0;\n"

# (code, kind, what stands there, what will)
IN_C = [
    ("__syncthreads();", "barrier", "__syncthreads();", ""),
    ("for (int k0 = 0; k0 < K; k0 += TILE) f(k0);", "loop", "k0 < K", "k0 < K - 1"),
    ("for (int k0 = 0; k0 < K; k0 += TILE) f(k0);", "loop", "k0 < K", "k0 <= K"),
    ("for (int k0 = 0; k0 < K; k0 += TILE) f(k0);", "loop", "k0 += TILE", "++k0"),
    ("for (int col = lane; col < width; col += 32) f(col);", "loop", "lane", "0"),
    ("for (unsigned a = N / 2; a > 0; a /= 2) f(a);", "loop", "a > 0", "a > 0 + 1"),
    ("const bool inside = row < rows && col < cols;", "bound", "row < rows && col < cols", "row < rows"),
    ("const bool inside = row < rows && col < cols;", "bound", "col < cols", "col <= cols"),
    ("if (index >= rows) return;", "guard", "if (index >= rows) return;", ""),
    ("if (lane == 0) out[row] = sum;", "guard", "if (lane == 0) out[row] = sum;", "out[row] = sum;"),
    ("const float f = sum == 0.0f ? 0.0f : 1.0f / sum;", "guard", "sum == 0.0f ? 0.0f : 1.0f / sum", "1.0f / sum"),
    ("sum += tile[row][k];", "indices", "tile[row][k]", "tile[k][row]"),
    ("const int64_t r = index / cols;", "indices", "index / cols", "index % cols"),
    ("x = y[row * cols + col];", "indices", "row * cols + col", "col * cols + row"),
    ("x = y[row * cols + col];", "offset", "row * cols + col", "col"),
    ("x = y[row * cols + col];", "offset", "row * cols", "row"),
    ("const float* p = query + q * cols;", "offset", "query + q * cols", "query"),
    ("q = batch_head * S_q;", "head", "batch_head", "0"),
    ("sum += a * b;", "assigned", "sum += a * b;", "sum = a * b;"),
    ("out[row] = sum;", "store", "out[row] = sum;", ""),
    ("state.l[r] *= rescale;", "rescale", "state.l[r] *= rescale;", ""),
    ("y = expf(x[row]) * inverse_sum;", "rescale", "expf(x[row]) * inverse_sum", "expf(x[row])"),
    ("out[row] = expf(x[row] - shift);", "sign", "x[row] - shift", "x[row] + shift"),
    ("out[row] = expf(x[row] - shift);", "operands", "x[row] - shift", "shift - x[row]"),
    ("m = fmaxf(m, x[row]);", "extremum", "fmaxf(m, x[row])", "fminf(m, x[row])"),
    ("float m = -INFINITY;", "initial", "-INFINITY", "0.0f"),
    ("const int64_t at = static_cast<int64_t>(row) * cols;", "cast", "static_cast<int64_t>(row)", "(row)"),
    ("kernel<<<blocks, THREADS, 0, stream>>>(query, rows);", "launch", "blocks", "THREADS"),
    ("kernel<<<blocks, THREADS, BYTES, stream>>>(query, rows);", "launch", "BYTES", "BYTES / 2"),
    ("kernel<<<blocks, THREADS, 0, stream>>>(query, S_q);", "operands", "S_q", "S_k"),
    ("kernel<<<blocks, THREADS, 0, stream>>>(query, S_q);", "operands", "query", "key"),
]  # fmt: skip
IN_PYTHON = [
    ("future = ones.triu(diagonal=1)", "bound", "1", "0"),
    ("S = S.masked_fill(keys > queries, -torch.inf)", "bound", "keys > queries", "keys >= queries"),
    ("S = S.masked_fill(keys > queries, -torch.inf)", "guard", "S.masked_fill(keys > queries, -torch.inf)", "S"),
    ("S = S.masked_fill(keys > queries, -torch.inf)", "initial", "-torch.inf", "0.0"),
    ("P = torch.softmax(S, dim=-1)", "indices", "-1", "-2"),
    ("O = O * rescale", "rescale", "O * rescale", "O"),
    ("m = torch.maximum(m, S)", "extremum", "torch.maximum(m, S)", "torch.minimum(m, S)"),
    ("S = query @ key", "operands", "query @ key", "key @ query"),
    ("P = exp(S - shift)", "sign", "S - shift", "S + shift"),
    ("x = range(0, n, B_c)", "loop", "range(0, n, B_c)", "range(0, n - 1, B_c)"),
]


def made(code: str) -> list[tuple[str, str, str]]:
    text = f"{INT}    {code}\n}}\n"
    start = len(INT)
    return [(one.kind, one.old, one.new) for one in c_rules.mutations(text, start, len(text) - 2, text)]


@pytest.mark.parametrize(("code", "kind", "old", "new"), IN_C)
def test_a_rule_in_cuda(code: str, kind: str, old: str, new: str) -> None:
    assert (kind, old, new) in made(code)


@pytest.mark.parametrize(("code", "kind", "old", "new"), IN_PYTHON)
def test_a_rule_in_python(code: str, kind: str, old: str, new: str) -> None:
    head = "def f(S, O, m, n, query, key):\n"
    text = f"{head}    {code}\n"
    found = python_rules.mutations(text, len(head), len(text))
    assert (kind, old, new) in [(one.kind, one.old, one.new) for one in found]
    assert {one.line for one in found} == {2}


def test_nothing_is_done_to_what_is_not_understood() -> None:
    assert made("asm volatile(@ !);") == []
    assert made("float4 k[KEYS];") == []


def test_a_store_is_no_index_of_its_own_target() -> None:
    """The name that is assigned to is not exchanged for another: that would be another statement."""
    assert all(old != "q" for kind, old, _ in made("q = index % S_q;") if kind == "operands")


def test_a_loop_with_its_pragma_is_one_statement() -> None:
    text = "{\n    int n = 0;\n#pragma unroll\n    for (int i = 0; i < 4; ++i) {\n        n += i;\n    }\n}"
    loop = statements(text, 1, len(text) - 1)[1]
    assert (loop.kind, text[loop.head[0] : loop.head[1]]) == ("for", "int i = 0; i < 4; ++i")
    assert [part.kind for part in loop.parts] == ["binary", "binary", "unary"]


def test_lines_keep_their_numbers() -> None:
    text = "f();\n#pragma unroll\nfor (;;) {\n    g(a,\n      b);  // why\n}\nh();\n"
    start = text.index("\n#pragma")
    plain = without_comments(text)
    changed = planted_text(
        plain,
        spots_of([(1, start, text.index("\nh"), "x();\ny();"), (2, text.index("g("), text.index(");  //") + 2, "")]),
    )
    assert changed.count("\n") == text.count("\n")
    assert changed.split("\n")[1] == "#pragma unroll"
    assert "if (planted(1)) { x(); y(); } else {" in changed.split("\n")[0]


def test_a_name_that_is_not_known_there_any_more_is_not_taken() -> None:
    """The loop over col is over: no compiler would take it."""
    found = made("for (int col = 0; col < cols; ++col) f(col);\n    int row = 0;\n    g(row);")
    assert ("operands", "row", "col") not in found
    assert ("operands", "row", "col") in made("int row = 0;\n    for (int col = 0; col < cols; ++col) g(row);")

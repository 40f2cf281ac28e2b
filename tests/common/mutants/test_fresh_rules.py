"""Each rule of the set "fresh" on a text: what it makes of it, and where."""

import pytest

from common.compiling.planting import planted_text, spots_of, widened
from common.mutants import c_rules_fresh, python_rules_fresh
from common.mutants.c_scope import variables_at

HEAD = """\
__global__ void __launch_bounds__(TILE) kernel(const float* query, const float* key, float* out, int rows, int cols) {
    __shared__ float partial[TILE];
    const int lane = threadIdx.x % 32, row = blockIdx.x;
    const bool seen = row < rows;
    float sum = 0.0f, shift = 1.0f;
    State state = {-INFINITY, 0.0f};
"""

# (code, kind, what stands there, what will)
IN_C = [
    ("out[row] = cols;", "variable", "cols", "rows"),
    ("sum += query[row];", "pointer", "query", "key"),
    ("out[row] = sum;", "value", "sum", "shift"),
    ("out[row] = state.m;", "value", "state.m", "state.l"),
    ("sum += query[row];", "shifted", "row", "row + 1"),
    ("f(rows);", "shifted", "rows", "rows - 1"),
    ("if (row < rows) out[row] = sum;", "bound", "rows", "rows - 1"),
    ("const int tiles = ceil_div(rows - row, cols);", "rounding", "ceil_div(rows - row, cols)", "(rows - row) / cols"),
    ("const int first = row / 32 * 32;", "rounding", "row / 32 * 32", "row"),
    ("for (int i = lane; i < cols; i += 32) f(i);", "begin", "lane", "lane + 1"),
    ("for (int i = 0; i < cols; i += 32) f(i);", "begin", "0", "32"),
    ("for (int i = lane; i < cols; i += 32) f(i);", "step", "i += 32", "i += 32 * 2"),
    ("for (int i = 0; i < cols; ++i) f(i);", "step", "++i", "i += 2"),
    ("for (int i = lane; i < cols; i += 32) f(i);", "comparison", "i < cols", "i != cols"),
    ("if (lane == 0) out[row] = sum;", "comparison", "lane == 0", "lane != 0"),
    ("if (seen && row < cols) out[row] = sum;", "negated", "seen && row < cols", "!(seen && row < cols)"),
    ("if (seen && row < cols) out[row] = sum;", "connective", "seen && row < cols", "seen || row < cols"),
    ("sum = row < rows ? query[row] : 0.0f;", "branches", "row < rows ? query[row] : 0.0f",
     "row < rows ? 0.0f : query[row]"),
    ("shift = fmaxf(shift, sum);", "either", "fmaxf(shift, sum)", "sum"),
    ("sum = warp_sum(sum);", "reduction", "warp_sum(sum)", "sum"),
    ("block_reduce(partial, Max());", "reduction", "block_reduce(partial, Max());", "block_reduce(partial, Sum());"),
    ("const int i = threadIdx.x;", "thread", "threadIdx.x", "blockIdx.x"),
    ("load(out, rows, cols);", "arguments", "load(out, rows, cols)", "load(out, cols, rows)"),
    ("kernel<<<rows, TILE, 0, stream>>>(query, key);", "arguments", "kernel<<<rows, TILE, 0, stream>>>(query, key)",
     "kernel<<<rows, TILE, 0, stream>>>(key, query)"),
    ("kernel<<<rows, TILE, 0, stream>>>(query, key);", "launch", "rows", "rows - 1"),
    ("kernel<<<rows, TILE, 0, stream>>>(query, key);", "call", "kernel<<<rows, TILE, 0, stream>>>(query, key);", ""),
    ("sum += expf(shift);", "function", "expf(shift)", "exp2f(shift)"),
    ("sum = 1.0f / shift;", "constant", "1.0f", "0.0f"),
    ("sum += shift;", "sign", "sum += shift", "sum -= shift"),
    ("out[row] = sum * inverse;", "factor", "sum * inverse", "sum * inverse * inverse"),
    ("const int64_t i = (row + lane) * cols + 1;", "brackets", "(row + lane) * cols + 1", "row + lane * cols + 1"),
    ("for (int i = 0; i < TILE; i += TILE_ROWS) f(i);", "size", "TILE", "TILE_ROWS"),
    ("v = make_float4(a[0], a[1], a[2], a[3]);", "vector", "a[2]", "a[1]"),
    ("hidden |= 1u << lane;", "bits", "1u << lane", "1u << (lane + 1)"),
    ("const int i = row * cols + lane;", "operator", "row * cols + lane", "(row + lane) * cols"),
    ("const int i = row / cols % rows;", "operator", "row / cols % rows", "row % rows / cols"),
    ("f(out); sum += out[row];", "order", "f(out); sum += out[row];", "sum += out[row]; f(out);"),
    ("f(out); __syncthreads();", "moved", "f(out); __syncthreads();", "__syncthreads(); f(out);"),
    ("for (int i = 0; i < 2; ++i) { f(i); __syncthreads(); }", "moved",
     "for (int i = 0; i < 2; ++i) { f(i); __syncthreads(); }",
     "for (int i = 0; i < 2; ++i) { f(i);  } __syncthreads();"),
    ("__syncthreads();", "branch", "__syncthreads();", "if (lane == 0) __syncthreads();"),
    ("__syncthreads();", "leaving", "__syncthreads();", "if (threadIdx.x >= cols) return; __syncthreads();"),
    ("for (int i = 0; i < cols; ++i) sum += query[i];", "leaving", "sum += query[i];", "{ sum += query[i]; break; }"),
    ("out[row] = sum;", "alone", "out[row] = sum;", "if (threadIdx.x == 0) out[row] = sum;"),
    ("out[row] = sum;", "added", "out[row] = sum;", "out[row] += sum;"),
    ("sum += query[row];", "twice", "sum += query[row];", "sum += query[row]; sum += query[row];"),
    ("for (int i = 0; i < 2; ++i) { state = add(state, i); }", "reset", "state = add(state, i);",
     "state = State{-INFINITY, 0.0f}; state = add(state, i);"),
    ("for (int i = 0; i < 2; ++i) { if (i > row) break; f(i); }", "jump", "break;", "continue;"),
]  # fmt: skip
IN_PYTHON = [
    ("x = k_start + B_c", "variable", "B_c", "k_start"),
    ("x = query @ key", "value", "query", "key"),
    ("x = slice(k_start, k_start + B_c)", "shifted", "k_start", "k_start + 1"),
    ("x = query.transpose(-2, -1)", "constant", "-2", "-1"),
    ("x = query.masked_fill(key, -torch.inf)", "sign", "-torch.inf", "torch.inf"),
    ("x = query > key", "comparison", "query > key", "query < key"),
    ("x = k_start if causal else B_c", "branches", "k_start if causal else B_c", "B_c if causal else k_start"),
    ("x = torch.exp(query)", "function", "torch.exp(query)", "(query)"),
    ("x = attend(query, key)", "arguments", "attend(query, key)", "attend(key, query)"),
    ("x = query * scale", "factor", "query * scale", "query * scale * scale"),
    ("x = k_start + B_c", "operator", "k_start + B_c", "k_start - B_c"),
    ("if causal:\n        x = 1", "negated", "causal", "not (causal)"),
    ("for i in range(0, B_c, k_start):\n        f(i)", "begin", "range(0, B_c, k_start)", "range(1, B_c, k_start)"),
    ("for i in range(0, B_c, k_start):\n        f(i)", "leaving", "f(i)", "f(i)\n        break"),
    ("cache.append(key)", "twice", "cache.append(key)", "cache.append(key)\n    cache.append(key)"),
    ("query[:] = key", "added", "query[:] = key", "query[:] += key"),
    ("cache.reset()\n    cache.append(key)", "order", "cache.reset()\n    cache.append(key)",
     "cache.append(key)\n    cache.reset()"),
]  # fmt: skip


def made(code: str, head: str = HEAD) -> list[tuple[str, str, str]]:
    text = f"constexpr int TILE = 32, TILE_ROWS = 8;\nconstexpr int TILE_ROWS = 8;\n{head}    {code}\n}}\n"
    start = text.index(head) + len(head)
    found = c_rules_fresh.mutations(text, start, len(text) - 2, text[text.index(head) :])
    return [(one.kind, one.old, one.new) for one in found]


@pytest.mark.parametrize(("code", "kind", "old", "new"), IN_C)
def test_a_rule_in_cuda(code: str, kind: str, old: str, new: str) -> None:
    assert (kind, old, new) in made(code)


@pytest.mark.parametrize(("code", "kind", "old", "new"), IN_PYTHON)
def test_a_rule_in_python(code: str, kind: str, old: str, new: str) -> None:
    head = "def f(query: Tensor, key: Tensor, k_start: int, B_c: int, scale: float, causal: bool):\n"
    text = f"{head}    {code}\n"
    found = python_rules_fresh.mutations(text, len(head), len(text))
    assert (kind, old, new) in [(one.kind, one.old, one.new) for one in found]


def test_what_changes_nothing_is_left_out() -> None:
    """Of two statements that have nothing to do with each other the order is free, and a maximum takes any."""
    assert "order" not in {kind for kind, _, _ in made("out[row] = sum; shift = 2.0f;")}
    assert "arguments" not in {kind for kind, _, _ in made("sum = fmaxf(sum, shift);")}
    assert "leaving" not in {kind for kind, _, _ in made("if (row < rows) out[row] = sum;")}
    assert "alone" not in {kind for kind, _, _ in made("if (lane == 0) out[row] = sum;")}


def test_a_place_knows_what_is_declared_before_it_and_around_it() -> None:
    text = HEAD + "    for (int i = 0; i < 2; ++i) {\n        float inner = 1.0f;\n    }\n    float after;\n    f();\n"
    inside, behind = (variables_at(text, text, text.index(word)) for word in ("float inner", "f();"))
    assert inside["i"] == "int" and "i" not in behind and "inner" not in behind
    assert behind["after"] == "float" and behind["query"] == "const float*" and behind["out"] == "float*"
    assert behind["partial"] == "shared float[TILE]" and behind["row"] == "int" and behind["seen"] == "bool"


def test_places_that_cross_become_one() -> None:
    """Three statements, of which the first two and the last two change places."""
    text = "{ a(); b(); for (;;) { c(); } d(); }"
    first, second = text.index("a"), text.index("b")
    ends = text.index(" for"), text.index(" d")
    replaced = [(1, first, ends[0], "b(); a();"), (2, second, ends[1], "for (;;) { c(); } b();")]
    wide = widened([*replaced, (3, text.index("c"), text.index("c") + 3, "e()")], text)
    assert wide[:2] == [
        (1, first, ends[1], "b(); a(); for (;;) { c(); }"),
        (2, first, ends[1], "a(); for (;;) { c(); } b();"),
    ]
    planted = planted_text(text, spots_of(wide))
    assert "if (planted(1)) { b(); a(); for (;;) { c(); } } else if (planted(2)) {" in planted
    assert "else { a(); b(); for (;;) { (planted(3) ? (e()) : (c())); } }" in planted

"""Wrong answers for matmuls: gemm_mistakes(a, b, b_is_transposed) for A @ B^T (True) and A @ B (False).

The inputs are float64. M, N and K in the sentences: A is [M, K], C is [M, N].
"""

import functools
from itertools import product

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import computed, or_nothing, variations
from common.diagnosis.mistakes.known import Mistake, Words, last_tile_starts

MOST_PRODUCTS = 1 << 19  # M * N * K, for which operands are indexed individually
TILE = 32  # tile width of the course's kernels

known = Words(__file__, TILE=TILE)


def gemm_mistakes(a: Tensor, b: Tensor, b_is_transposed: bool) -> list[Mistake]:
    """Wrong answers for A @ B^T (b [batch, N, K]) or A @ B (b [batch, K, N]), a [batch, M, K]."""
    batch, _, inner = a.shape
    cols = b.size(1) if b_is_transposed else b.size(2)
    bt = b.transpose(1, 2) if b_is_transposed else b  # [batch, K, N]
    if b_is_transposed:
        found = [known("B not transposed", lambda: a @ b.reshape(batch, inner, cols))]
    else:
        found = [known("B transposed", lambda: a @ b.reshape(batch, cols, inner).transpose(1, 2))]
    for k in last_tile_starts(inner):
        found.append(known("last tile dropped", lambda k=k: a[..., :k] @ bt[:, :k], k=k, inner=inner))
    if inner > 1 and inner % TILE == 0:
        found.append(known("last product only", lambda: a[..., -1:] @ bt[:, -1:]))
    return found + row_length_mistakes(a, b, b_is_transposed) + tile_index_mistakes(a, b, b_is_transposed)


def row_length_mistakes(a: Tensor, b: Tensor, b_is_transposed: bool) -> list[Mistake]:
    """An operand read, and bounds-checked, with a wrong number of rows or row length: M, N and K mixed up."""
    m, k = a.shape[1:]
    n = b.size(1) if b_is_transposed else b.size(2)
    letters = {"M": m, "N": n, "K": k}
    right = {"A": ("M", "K"), "B": ("N", "K") if b_is_transposed else ("K", "N")}
    found = []
    for operand, matrix in (("A", a), ("B", b)):
        usual = [right[operand][::-1], (right[operand][0], *set(letters) - set(right[operand]))]  # likely ones first
        for rows, cols in dict.fromkeys([*usual, *product(letters, letters)]):
            if (rows, cols) == right[operand]:
                continue

            def answer(operand=operand, matrix=matrix, rows=rows, cols=cols) -> Tensor:
                read = misread(matrix, letters[rows], letters[cols])
                left, other = (read, b) if operand == "A" else (a, read)
                return left @ (other.transpose(1, 2) if b_is_transposed else other)

            names = {"operand": operand, "rows": rows, "cols": cols, "right": ", ".join(right[operand])}
            if (rows, cols) == right[operand][::-1]:
                found.append(known("{operand} read as [{rows}, {cols}]", answer, **names))
            else:
                found.append(known("{operand} read as [{rows}, {cols}] (not transposed)", answer, **names))
    return found


def tile_index_mistakes(a: Tensor, b: Tensor, b_is_transposed: bool) -> list[Mistake]:
    """Mistakes in loading an operand's tile: its origin or an index; the rest is correct."""
    batch, m, k = a.shape
    n = b.size(1) if b_is_transposed else b.size(2)
    if batch * m * n * k > MOST_PRODUCTS:
        return []
    i, j, p = (torch.arange(size, device=a.device) for size in (m, n, k))
    i, j, p = i[:, None, None], j[:, None], p  # C[i, j] is a sum over p
    begins = {"first_row": i - i % TILE, "first_col": j - j % TILE, "k0": p - p % TILE}
    of_a = (a, "first_row", i % TILE, "k0", p % TILE, "M", "K")
    of_b = (b, "first_col", j % TILE, "k0", p % TILE, "N", "K")
    if not b_is_transposed:
        of_b = (b, "k0", p % TILE, "first_col", j % TILE, "K", "N")
    sizes = {"M": m, "N": n, "K": k}
    right_a, right_b = a[:, :, None], (b if b_is_transposed else b.transpose(1, 2))[:, None]
    found = []
    for operand, (matrix, top, r, left, c, rows, cols), other in (("A", of_a, right_b), ("B", of_b, right_a)):
        start = torch.arange(batch, device=a.device).view(-1, 1, 1, 1) * matrix[0].numel()
        right = begins | sizes | {"r": r, "c": c, "row": begins[top] + r, "col": begins[left] + c}

        def answer(text: str, matrix=matrix, rows=rows, cols=cols, other=other, start=start, right=right) -> Tensor:
            """The matmul with row, col and index computed by `text`; 0 outside the matrix."""
            at = computed(text, right)
            inside = (at["row"] >= 0) & (at["row"] < sizes[rows]) & (at["col"] >= 0) & (at["col"] < sizes[cols])
            index = start + at["index"]
            held = (index >= 0) & (index < matrix.numel())
            read = torch.where(held, matrix.flatten()[index.clamp(0, matrix.numel() - 1)], torch.nan)
            return (torch.where(inside, read, 0.0) * other).sum(-1)

        last, named = f"\nindex = row * {cols} + col", {"operand": operand, "tile": f"{operand.lower()}_tile"}
        transposed = functools.partial(or_nothing, answer, f"row = {top} + c\ncol = {left} + r{last}")
        exchanged = functools.partial(or_nothing, answer, f"row = {left} + r\ncol = {top} + c{last}")
        found.append(known("tiles of {operand} transposed", transposed, **named))
        found.append(known("tiles of {operand} from exchanged places", exchanged, **named))
        place, index = f"row = {top} + r\ncol = {left} + c", f"index = ({top} + r) * {cols} + {left} + c"
        for text, then in ((place, last), (index, "")):
            found += [
                known(
                    "{operand}: {wrong}",
                    functools.partial(or_nothing, answer, whole + then),
                    vague=True,
                    operand=operand,
                    wrong=wrong,
                    line=line,
                )
                for line, wrong, whole in variations(text, (("first_row", "first_col", "k0"), ("M", "N", "K")))
            ]
    return found


def misread(x: Tensor, rows: int, cols: int) -> Tensor:
    """x [batch, R, C] as read by a kernel that assumes [rows, cols]: row length cols, zeros outside.

    Reads past the end of x give NaN.
    """
    batch, true_rows, true_cols = x.shape
    row = torch.arange(true_rows, device=x.device)[:, None]
    col = torch.arange(true_cols, device=x.device)[None, :]
    start = torch.arange(batch, device=x.device)[:, None, None] * true_rows * true_cols
    index = start + row * cols + col
    flat = torch.cat([x.flatten(), x.new_full((1,), torch.nan)])
    return torch.where((row < rows) & (col < cols), flat[index.clamp(max=x.numel())], 0)

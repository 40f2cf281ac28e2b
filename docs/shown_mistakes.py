"""The mistakes whose reports the handouts show: the text in a block's comment -> edits to the solved files."""

from __future__ import annotations

from solved_copy import Edit

_NAIVE = "task1/naive_attention.cu"
_TILED = "task2/attention_kernel.cu"
_STRIDED = "task5/strided_attention.cu"
_FLASH = "task4/flash_attention.cu"
_GPT2 = "task7/gpt2_kernels.cu"

PLANTED: dict[str, list[Edit]] = {
    "gap 3 uses triu() in place of triu(diagonal=1)": [Edit("task1/attention.py", ".triu(diagonal=1)", ".triu()")],
    "output_kernel without its `return` for spare threads": [
        Edit(_NAIVE, "    if (index >= batch_heads * S_q * head_dim) return;\n", "")
    ],
    "no barrier inside the loop of the tree": [
        Edit(_TILED, "partial[threadIdx.x + active];\n        __syncthreads();", "partial[threadIdx.x + active];")
    ],
    "the barrier after `row_max = partial[0];` taken out": [
        Edit(_TILED, "row_max = partial[0];\n    __syncthreads();", "row_max = partial[0];")
    ],
    "tile of width 32 instead of 33": [
        Edit(_TILED, "b_tile[TILE][TILE + 1];", "b_tile[TILE][TILE];"),
        Edit(_TILED, '    static_assert(WIDTH % 2 == 1, "an even width gives bank conflicts");\n', ""),
    ],
    "add_tile has O = state.O + P @ value_tile": [
        Edit("task3/attention.py", "O = rescale * state.O + P @ value_tile", "O = state.O + P @ value_tile")
    ],
    "attend calls tile_scores with all of key and slices the result": [
        Edit(
            "task3/attention.py",
            "        S = tile_scores(query_tile, key[:, :, tile], q_start, k_start, scale, causal)\n",
            "        S = tile_scores(query_tile, key, q_start, 0, scale, causal)[..., tile]\n",
        )
    ],
    "online_softmax leaves out the line that multiplies state.o by rescale": [
        Edit(_FLASH, "state.o[r][c] *= rescale;", ";")
    ],
    "no __syncthreads() after accumulate_output": [
        Edit(
            _FLASH,
            "accumulate_output<T>(state, p_tile, v_tile, first_row);\n        __syncthreads();",
            "accumulate_output<T>(state, p_tile, v_tile, first_row);",
        )
    ],
    "attend_to_tile is given 1 as row_step": [Edit(_STRIDED, "count - n, stride,", "count - n, 1,")],
    "the loop counts positions, up to seen": [Edit(_STRIDED, "ceil_div(seen - offset, stride)", "seen")],
    "merge_warps uses weight = 1": [
        Edit("task6/decode_attention.cu", "const float weight = exp2f(m[w] - shift);", "const float weight = 1.0f;")
    ],
    "forward calls flash_attention in decode, too": [
        Edit(
            "task6/attention.py",
            "            heads = self.cache.attend(query)\n",
            "            group = self.num_heads // self.num_kv_heads\n"
            "            keys, values = (rows.repeat_interleave(group, dim=1) for rows in (key, value))\n"
            "            heads = self.flash_ops.flash_attention(query, keys, values, True)\n",
        )
    ],
    "row_moments uses one pass: E[x^2] - mean^2": [
        Edit(_GPT2, "(row[col] - moments.mean) * (row[col] - moments.mean)", "row[col] * row[col]"),
        Edit(_GPT2, "warp_sum(squares) / width + eps", "warp_sum(squares) / width - moments.mean * moments.mean + eps"),
    ],
}

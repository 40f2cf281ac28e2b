"""The mistakes planted in the kernels of tasks 2, 4 and 6, for the tests of verdicts and of the checked build.

Each is a set of exact replacements in the task's solution; planted.py says what can be replaced.
"""

from planted import Planted

TREE = "active /= 2) {\n        if (threadIdx.x < active) partial"  # of row_sum_kernel
MASKED = "masked_score(row[k] * scale, mask, batch_head, q, k)"
PRODUCT = "a_tile[threadIdx.y + i * TILE_ROWS][k] * b"
TRANSPOSED = "load_tile_transposed(b_tile, b_matrix, N, K, first_col, k0);"
LOADED = "load_tile(b_tile, b_matrix, K, N, k0, first_col);"
STORED = "c[static_cast<size_t>(row) * N + col]"
HIDDEN = "masked_score(0.0f, mask, batch_head, q, k) == -INFINITY"

TASK2 = Planted(
    "task2",
    {
        # row_sum_kernel
        "sum_without_the_loop": [("«i += ROW_THREADS») sum +=", "i = cols")],
        "sum_assigned": [("sum += row_x[i];", "sum = row_x[i];")],
        "row_sum_without_the_tail": [("«i < cols»; i += ROW_THREADS) row_sum", "i < cols / ROW_THREADS * ROW_THREADS")],
        "sum_of_row_0": [("«x + static_cast<size_t>(blockIdx.x) * cols»;\n    // BEGIN", "x")],
        "sum_without_the_tree": [(f"«active > 0»; {TREE}", "active > ROW_THREADS")],
        "tree_starts_late": [(f"active = «ROW_THREADS / 2»; active > 0; {TREE}", "ROW_THREADS / 4")],
        "tree_stops_early": [(f"«active > 0»; {TREE}", "active > 1")],
        "sum_not_filled": [("partial[threadIdx.x] = sum;", "if (threadIdx.x < cols) partial[threadIdx.x] = sum;")],
        "sum_no_barrier_before_the_tree": [("for some of them.\n    «__syncthreads();»", "")],
        "sum_no_barrier_in_the_tree": [("partial[threadIdx.x + active];\n        «__syncthreads();»", "")],
        "sum_by_the_last_thread": [
            ("for some of them.\n    «__syncthreads();»", ""),
            (f"«active > 0»; {TREE}", "false"),
            (
                "if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];",
                "for (int i = 0; threadIdx.x == ROW_THREADS - 1 && i < ROW_THREADS - 1; ++i) sum += partial[i];\n"
                "    if (threadIdx.x == ROW_THREADS - 1) sums[blockIdx.x] = sum;",
            ),
        ],
        # softmax_kernel
        "maximum_starts_at_0": [("partial[threadIdx.x] = «row_max»;", "fmaxf(row_max, 0.0f)")],
        "no_max": [("row_max == -INFINITY ? 0.0f : row_max", "0.0f")],
        "infinity_minus_infinity": [("row_max == -INFINITY ? 0.0f : row_max", "row_max")],
        "zero_over_zero": [("row_sum == 0.0f ? 0.0f : 1.0f / row_sum", "1.0f / row_sum")],
        "softmax_of_columns": [
            ("«x + static_cast<size_t>(blockIdx.x) * cols»;\n    float* row_y", "x + blockIdx.x"),
            ("y + static_cast<size_t>(blockIdx.x) * cols", "y + blockIdx.x"),
            ("row_x[i]", "row_x[static_cast<size_t>(i) * gridDim.x]", 4),
            ("row_y[i]", "row_y[static_cast<size_t>(i) * gridDim.x]"),
            ("softmax_kernel<<<static_cast<unsigned>(«rows»)", "cols"),
            (">>>(x, y, «cols»);", "static_cast<int>(rows)"),
        ],
        "one_column_per_thread": [("«i += ROW_THREADS») {\n        row_y[i]", "i = cols")],
        "maximum_of_half_the_threads": [
            ("partial[threadIdx.x] = «row_max»;", "threadIdx.x < ROW_THREADS / 2 ? row_max : -INFINITY")
        ],
        "softmax_zeros": [("expf(row_x[i] - shift) * inverse_sum", "0.0f")],
        "row_too_long": [("«i < cols»; i += ROW_THREADS) row_max", "i <= cols")],
        "partial_not_filled": [
            ("partial[threadIdx.x] = row_max;", "if (threadIdx.x < cols) partial[threadIdx.x] = row_max;")
        ],
        "no_barrier_before_the_tree": [("instead of a + b.\n    «__syncthreads();»", "")],
        "no_barrier_in_the_tree": [("+ active]);\n        }\n        «__syncthreads();»", "")],
        "no_barrier_between_reductions": [("row_max = partial[0];\n    «__syncthreads();»", "")],
        # crashes on a GPU, so only the checked simulator may run it
        "host_reads_the_input": [(">>>(x, y, «cols»);", "x[3] == x[3] ? cols : 0")],
        # gemm_nn_kernel, gemm_nt_kernel
        "B_not_transposed": [(TRANSPOSED, LOADED)],
        "last_tile_dropped": [("«k0 < K»; k0 += TILE", "k0 + TILE <= K", 2)],
        "B_read_as_N_by_K": [
            ("load_tile(b_tile, b_matrix, «K», N, k0", "N"),
            ("load_tile(b_tile, b_matrix, K, «N», k0", "K"),
        ],
        "A_read_as_K_by_M": [
            ("load_tile(a_tile, a_matrix, «M», K, first_row", "K", 2),
            ("load_tile(a_tile, a_matrix, M, «K», first_row", "M", 2),
        ],
        "b_tile_from_k0_first_col": [
            ("load_tile_transposed(b_tile, b_matrix, N, K, «first_col», k0);", "k0"),
            ("load_tile_transposed(b_tile, b_matrix, N, K, first_col, «k0»);", "first_col"),
        ],
        "a_tile_transposed": [(PRODUCT, "a_tile[k][threadIdx.y + i * TILE_ROWS] * b")],
        "assigned_not_added": [(f"sums[i] += {PRODUCT};", f"sums[i] = {PRODUCT};")],
        "gemm_zeros": [(PRODUCT, "0.0f")],
        "last_row_unwritten": [("if («row < M» && col < N) c[", "row + 1 < M")],
        "edge_not_guarded": [("tile[r][threadIdx.x] = «inside» ? matrix", "true")],
        "sum_into_fresh_output": [(f"{STORED} = sums[i];", f"{STORED} += sums[i];")],
        "no_barrier_after_load": [(f"{LOADED}\n            «__syncthreads();»", "")],
        "no_barrier_after_multiply": [("multiply_tiles(a_tile, b_tile, sums);\n            «__syncthreads();»", "", 2)],
        # scale_and_mask_kernel, custom_attention
        "scale_forgotten": [(MASKED, MASKED.replace(" * scale", ""))],
        "diagonal_hidden": [("causal && k > q", "causal && k >= q")],
        "sees_one_ahead": [("causal && k > q", "causal && k > q + 1")],
        "counted_from_the_end": [("causal && k > q", "causal && k > q + S_k - S_q")],
        "nothing_written": [("gemm_nn(scores, value, out, batch_heads, S_q, head_dim, S_k, stream);", "(void)out;")],
        "bool_inverted": [(MASKED, f"{HIDDEN} ? row[k] * scale : -INFINITY")],
        "mask_of_the_first_batch_entry": [(MASKED, MASKED.replace("batch_head", "batch_head % mask.heads"))],
        "mask_of_the_first_head": [(MASKED, MASKED.replace("batch_head", "batch_head / mask.heads * mask.heads"))],
        "mask_before_the_scale": [(MASKED, "masked_score(row[k], mask, batch_head, q, k) * scale")],
        "masked_with_a_large_number": [(MASKED, f"{HIDDEN} ? -1e9f : row[k] * scale")],
        "float_as_bool": [(MASKED, "masked_score(0.0f, mask, batch_head, q, k) == 0.0f ? -INFINITY : row[k] * scale")],
        "mask_not_passed_on": [("S_q, S_k, scale, causal, «mask», stream);", "AttentionMask()")],
    },
)

NO_KEY_YET = [("m_new == -INFINITY ? 0.0f : m_new", "m_new")]
RESCALE_L = ("state.l[r] *= rescale;", "")
RESCALE_O = ("#pragma unroll\n        for (int c = 0; c < T::COLS; ++c) state.o[r][c] *= rescale;", "")
SEES = "key > row + diagonal"
ELEMENT, SCALED = "tile[row * STRIDE + col]", "source[row * head_dim + col] * factor"

# Planted only for the tests of task 4's stages
OF_STAGES = {
    "factor_ignored",
    "neighboring_keys",
    "first_key_of_the_lane",
    "scores_assigned",
    "row_of_the_warp",
    "neighbors_masked",
    "key_of_the_lane",
    "p_not_added",
    "l_overwritten",
    "P_not_stored",
    "maximum_not_subtracted",
    "O_overwritten",
    "first_column_of_the_lane",
    "hidden_by_both",
    "maximum_kept_of_the_tile",
}

TASK4 = Planted(
    "task4",
    {
        # load_tile
        "padding_not_written": [(f"{ELEMENT} = inside ? {SCALED} : 0.0f;", f"if (inside) {ELEMENT} = {SCALED};")],
        "rows_of_D_floats": [("source[«row * head_dim + col»]", "row * T::D + col")],
        "factor_ignored": [("source[row * head_dim + col] * «factor»", "1.0f")],
        # compute_scores
        "neighboring_keys": [("k_tile[(«lane + 32 * c») * T::K_STRIDE", "lane * T::KEYS + c")],
        "first_key_of_the_lane": [("k_tile[(«lane + 32 * c») * T::K_STRIDE", "lane")],
        "scores_assigned": [("add_dot(«s[r][c]», q", "0.0f")],
        "K_not_padded": [("(lane + 32 * c) * «T::K_STRIDE» + d", "T::D")],
        "Q_rows_of_the_first_warp": [("q_tile[(«first_row + r») * T::D", "r")],
        # mask_scores
        "end_of_keys_not_masked": [("key >= keys_left", "false")],
        "not_causal": [(SEES, "false")],
        "diagonal_hidden": [(SEES, "key >= row + diagonal")],
        "sees_one_ahead": [(SEES, "key > row + diagonal + 1")],
        "mask_without_k_start": [("at_most(B_c, «q_start + diagonal - k_start»)", "q_start + diagonal")],
        "mask_without_q_start": [("at_most(B_c, «q_start + diagonal - k_start»)", "diagonal - k_start")],
        "mask_of_the_wrong_sign": [("at_most(B_c, «q_start + diagonal - k_start»)", "k_start + diagonal - q_start")],
        "hidden_by_both": [
            ("«key >= keys_left || key > row + diagonal») s", "key >= keys_left && key > row + diagonal")
        ],
        "maximum_kept_of_the_tile": [("state.m[r] = «m_new»;", "tile_max")],
        "masked_with_0": [("s[r][c] = «-INFINITY»;", "0.0f")],
        "row_of_the_warp": [("row = «first_row + r», key = lane + 32 * c;", "r")],
        "neighbors_masked": [("row = first_row + r, key = «lane + 32 * c»;", "lane * T::KEYS + c")],
        "key_of_the_lane": [("row = first_row + r, key = «lane + 32 * c»;", "lane")],
        # online_softmax
        "p_not_added": [("state.l[r] += p;", "")],
        "l_overwritten": [("state.l[r] += p;", "state.l[r] = p;")],
        "P_not_stored": [("p_tile[(first_row + r) * T::B_c + lane + 32 * c] = p;", "")],
        "maximum_not_subtracted": [("s[r][c] - «shift»", "0.0f")],
        "O_not_rescaled": [RESCALE_O],
        "l_not_rescaled": [RESCALE_L],
        "nothing_rescaled": [RESCALE_O, RESCALE_L],
        "inverse_rescale": [("exp2f(state.m[r] - shift)", "exp2f(shift - state.m[r])")],
        "maximum_of_the_tile": [("fmaxf(state.m[r], tile_max)", "tile_max")],
        "maximum_not_kept": [("state.m[r] = m_new;", "")],
        "no_key_yet": NO_KEY_YET,
        "expf_for_exp2f": [("«exp2f»(state.m[r] - shift)", "expf"), ("«exp2f»(s[r][c] - shift)", "expf")],
        # accumulate_output
        "P_rows_of_the_first_warp": [("p_tile[(«first_row + r») * T::B_c + j]", "r")],
        "V_rows_mixed_up": [("column[0], «column[T::D]»", "column[2 * T::D]")],
        "O_overwritten": [("add_dot(«state.o[r][c]», p", "0.0f")],
        "first_column_of_the_lane": [("v_tile[j * T::D + «lane + 32 * c»]", "lane")],
        # store_output
        "lanes_not_summed": [("warp_sum(state.l[r])", "state.l[r]")],
        "not_normalized": [("l == 0.0f ? 0.0f : 1.0f / l", "1.0f")],
        "zero_over_zero": [("l == 0.0f ? 0.0f : 1.0f / l", "1.0f / l")],
        "rows_not_guarded": [("if («row < rows_left» && col < head_dim) out", "true")],
        # flash_attention_kernel
        "K_of_the_first_head": [("    key += head * S_k * head_dim;", "")],
        "V_of_the_first_head": [("    value += head * S_k * head_dim;", "")],
        "maximum_starts_at_0": [("state.m[r] = «-INFINITY»;", "0.0f")],
        "loop_ends_at_q_start": [("«q_start + B_r + diagonal»;", "q_start + diagonal")],
        "loop_ends_a_tile_early": [("«q_start + B_r + diagonal»;", "q_start + B_r - B_c + diagonal")],
        "loop_not_aligned": [("«q_start + B_r + diagonal»;", "q_start + B_r + (diagonal == NOT_CAUSAL ? S_k : 0)")],
        "last_tile_dropped": [("«k_start < keys_end»; k_start", "k_start + B_c <= keys_end")],
        "mask_within_the_tile": [("q_start + diagonal - k_start", "diagonal")],
        "no_barrier_after_load": [("keys_left, head_dim, 1.0f);\n        «__syncthreads();»", "")],
        "no_syncwarp_after_P": [("__syncwarp();", "")],
        "no_barrier_at_the_end": [("v_tile, first_row);\n        «__syncthreads();»", "")],
        # launch_flash_attention, custom_flash_attention
        "shared_memory_not_asked_for": [("MaxDynamicSharedMemorySize, «T::BYTES»", "48 * 1024")],
        "scale_forgotten": [("«scale * LOG2_E»,\n", "LOG2_E")],
        "scale_twice": [("«scale * LOG2_E»,\n", "scale * scale * LOG2_E")],
        "log2_e_forgotten": [("«scale * LOG2_E»,\n", "scale")],
        "always_causal": [("causal ? diagonal : NOT_CAUSAL", "diagonal")],
        "aligned_to_the_start": [("causal ? diagonal : NOT_CAUSAL", "causal ? 0 : NOT_CAUSAL")],
        "aligned_to_the_end": [("causal ? diagonal : NOT_CAUSAL", "causal ? S_k - S_q : NOT_CAUSAL")],
        "aligned_the_wrong_way": [("causal ? diagonal : NOT_CAUSAL", "causal ? -diagonal : NOT_CAUSAL")],
    },
)

SLOT = "sequence_head * max_seq_len + position + token"

TASK6 = Planted(
    "task6",
    {
        # update_cache_kernel
        "new_tokens_not_counted": [("position > max_seq_len - new_tokens", "position >= max_seq_len")],
        "position_not_checked": [("position > max_seq_len - new_tokens", "false")],
        "one_slot_late": [(f"«{SLOT}»;", f"{SLOT} + 1")],
        "row_taken_for_the_slot": [(f"«{SLOT}»;", "row")],
        "position_of_the_first_sequence": [("positions[«sequence_head / kv_heads»]", "0")],
        "heads_not_divided_away": [("positions[«sequence_head / kv_heads»]", "sequence_head")],
        "key_and_value_exchanged": [
            ("= «key[row * head_dim + col]»;", "value[row * head_dim + col]"),
            ("= «value[row * head_dim + col]»;", "key[row * head_dim + col]"),
        ],
        # score_keys
        "hidden_keys_score_0": [("first_key + i < length ? sum : «-INFINITY»", "0.0f")],
        # accumulate_values
        "no_key_yet": NO_KEY_YET,
        "l_not_rescaled": [("state.l *= rescale;", "")],
        "o_not_rescaled": [("#pragma unroll\n    for (int c = 0; c < COLS; ++c) state.o[c] *= rescale;", "")],
        "unused_values_read": [("state.o[c] += «inside» ?", "col < head_dim")],
        "expf_for_exp2f": [
            ("«exp2f»(state.m - shift)", "expf"),
            ("«exp2f»(s[i] - shift)", "expf"),
            ("«exp2f»(m[w] - shift)", "expf"),
        ],
        # merge_warps
        "maximum_from_warp_1": [("for (int w = «0»; w < WARPS; ++w) m_all = fmaxf(m_all, m[w]);", "1")],
        "maximum_without_the_last_warp": [("w < «WARPS»; ++w) m_all = fmaxf(m_all, m[w]);", "WARPS - 1")],
        "merged_without_weights": [("exp2f(m[w] - shift)", "1.0f")],
        "sums_without_weights": [("l_all += weight * l[w];", "l_all += l[w];")],
        "outputs_without_weights": [("o_all += weight * o[w * D + col];", "o_all += o[w * D + col];")],
        "no_warp_has_seen_a_key": [
            ("fmaxf(m_all, m[w]);\n    const float shift = «m_all == -INFINITY ? 0.0f : m_all»;", "m_all")
        ],
        # attend_keys, head_rows
        "first_group_only": [("first_key < end; «first_key += WARPS * KEYS»", "first_key = end")],
        "warps_share_keys": [("first_key < end; first_key += «WARPS * KEYS»", "KEYS")],
        "cache_of_tokens_and_heads": [
            (
                "(sequence * kv_heads + kv_head) * max_seq_len * head_dim",
                "(sequence * max_seq_len * kv_heads + kv_head) * head_dim",
            ),
            ("k_rows[«(first_key + i)» * head_dim + col]", "(first_key + i) * 2"),
            ("v_rows[«(first_key + i)» * head_dim + col]", "(first_key + i) * 2"),
        ],
        "no_barrier_before_merge": [("l_shared[warp] = state.l;\n    }\n    «__syncthreads();»", "")],
        "K_V_heads_interleaved": [("head / (heads / kv_heads)", "head % kv_heads")],
        "newest_key_left_out": [("int64_t length = «lengths[sequence]»;", "lengths[sequence] - 1")],
        "length_of_the_first_sequence": [("int64_t length = «lengths[sequence]»;", "lengths[0]")],
        "length_not_limited": [("if (length > max_seq_len) length = max_seq_len;", "")],
        # split_kernel
        "keys_rounded_down": [("ceil_div(head.length, splits)", "head.length / splits")],
        "every_part_has_all_keys": [("begin = part * keys;\n    if (begin + keys < end) end = begin + keys;", ";")],
        "begin_in_splits": [("begin = «part * keys»;", "part * splits")],
        "end_is_seen_as_well": [("end = «begin + keys»;", "begin + keys - 1")],
        "first_column_of_each_lane": [("+ lane + 32 * c] = «state.o[c]»", "state.o[0]")],
        "last_slot_refused": [
            ("«position > max_seq_len - new_tokens») return", "position >= max_seq_len - new_tokens")
        ],
        "end_of_the_last_part": [("if (begin + keys < end) end = begin + keys;", "end = begin + keys;")],
        "lse_in_base_2": [("lse_log2 / LOG2_E", "lse_log2")],
        "empty_part_is_nan": [("m_shared[w]);\n    const float shift = «m_all == -INFINITY ? 0.0f : m_all»;", "m_all")],
    },
)

"""The sizes of the tile that a stage of task 4 is tested with; task4/given/stages.h has the same."""

B_R, B_C, D, WARPS = 12, 64, 64, 4
LANES = 32
ROWS, KEYS = B_R // WARPS, B_C // LANES  # rows per warp, keys per lane
K_STRIDE = D + 4

"""Task 7: GPT-2 inference through the kernels of tasks 4 and 6."""

import os

# Between two operators PyTorch's CPU threads would spin, on the very cores that the simulator needs. The
# variable is read when torch is imported, so it is set here, before any module of this package does that.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

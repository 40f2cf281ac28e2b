"""python -m task2.benchmark: how fast task 2's kernels are on a GPU, beside PyTorch's."""

from task2.tools.benchmark import main

if __name__ == "__main__":
    raise SystemExit(main())

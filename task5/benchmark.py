"""python -m task5.benchmark: how fast sparse attention is on a GPU, beside PyTorch's."""

from task5.tools.benchmark.command import main

if __name__ == "__main__":
    raise SystemExit(main())

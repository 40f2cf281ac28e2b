"""python -m task6.benchmark: how fast one decode step of attention is on a GPU, beside PyTorch's."""

from task6.tools.benchmark import main

if __name__ == "__main__":
    raise SystemExit(main())

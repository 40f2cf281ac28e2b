"""python -m task4.benchmark: how fast attention is on a GPU, every version of the course beside PyTorch's."""

from task4.tools.benchmark.command import main

if __name__ == "__main__":
    raise SystemExit(main())

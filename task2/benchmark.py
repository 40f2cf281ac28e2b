"""python -m task2.benchmark: how fast task 2's kernels are on a GPU, compared with PyTorch's."""

from common.cli.benchmark import benchmark_main
from task2.tools.benchmark import BENCHMARK

if __name__ == "__main__":
    raise SystemExit(benchmark_main(BENCHMARK))

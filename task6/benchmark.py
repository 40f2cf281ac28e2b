"""python -m task6.benchmark: how fast one decode step of attention is on a GPU, compared with PyTorch's."""

from common.cli.benchmark import benchmark_main
from task6.tools.benchmark import BENCHMARK

if __name__ == "__main__":
    raise SystemExit(benchmark_main(BENCHMARK))

"""python -m task5.benchmark: how fast sparse attention is on a GPU, compared with PyTorch's."""

from common.cli.benchmark import benchmark_main
from task5.tools.benchmark import BENCHMARK

if __name__ == "__main__":
    raise SystemExit(benchmark_main(BENCHMARK))

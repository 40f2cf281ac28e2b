"""python -m task4.benchmark: how fast attention is on a GPU, every version of the course compared with PyTorch's."""

from common.cli.benchmark import benchmark_main
from task4.tools.benchmark import BENCHMARK

if __name__ == "__main__":
    raise SystemExit(benchmark_main(BENCHMARK))

"""python -m task5.test: tests task 5's kernels against a float64 reference and times them on a GPU. --help: options."""

from common.cli.test import TaskTest, test_main
from task5.cases import PARTS, cases
from task5.cases.speed import BENCHMARK

TEST = TaskTest("task5", PARTS, cases, [BENCHMARK], modes={"correctness": tuple(PARTS), "benchmark": ("benchmark",)})

if __name__ == "__main__":
    raise SystemExit(test_main(TEST))

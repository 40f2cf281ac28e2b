"""python -m task2.test: tests task 2's kernels against a float64 reference."""

from common.cli.test import TaskTest, test_main
from task2.cases import PARTS, cases

TEST = TaskTest("task2", PARTS, cases, built_of={"attention": ("softmax", "gemm")})

if __name__ == "__main__":
    raise SystemExit(test_main(TEST))

"""python -m task3.test: tests task 3's algorithm and kernels against a float64 reference."""

from common.cli.test import TaskTest, test_main
from task3.cases import PARTS, cases

TEST = TaskTest("task3", PARTS, cases, in_python=("algorithm",))

if __name__ == "__main__":
    raise SystemExit(test_main(TEST))

"""python -m task1.test: tests task 1's layer and kernels against a float64 reference."""

from common.cli.test import TaskTest, test_main
from task1.cases import PARTS, cases

TEST = TaskTest("task1", PARTS, cases, in_python=("layer",), built_of={"attention": ("scores", "softmax", "output")})

if __name__ == "__main__":
    raise SystemExit(test_main(TEST))

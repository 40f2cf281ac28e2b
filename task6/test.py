"""python -m task6.test: tests the KV cache and attention over it, and on a GPU its speed."""

from common.cli.test import TaskTest, test_main
from task6.cases import PARTS, cases
from task6.cases.speed import SPEED
from task6.tools.pipeline import PIPELINE

TEST = TaskTest(
    "task6",
    PARTS,
    cases,
    [PIPELINE, SPEED],
    optional={"split": ("split_kernel",), "ring": ("pieces_of", "merge")},
    in_python=("ring",),
    built_of={"generate": ("update", "decode"), "split": ("decode",), "pipeline": ("update", "decode")},
)

if __name__ == "__main__":
    raise SystemExit(test_main(TEST))

"""python -m task4.test: tests task 4's kernel against a float64 reference, and on a GPU its speed. --help: options."""

from common.cli.test import TaskTest, test_main
from task4.cases import PARTS, cases
from task4.cases.speed import SPEED
from task4.cases.stages import STAGES

TEST = TaskTest(
    "task4",
    PARTS,
    cases,
    [SPEED],
    groups={"stages": ("test the functions of gaps 1 to 6, one at a time", STAGES)},
    stages=STAGES,
    built_of={"full": STAGES, "causal": STAGES},
)

if __name__ == "__main__":
    raise SystemExit(test_main(TEST))

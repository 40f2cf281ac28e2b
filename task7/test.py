"""python -m task7.test: are task 7's kernels right, and does GPT-2 write the same text through all of yours?"""

from common.cli.test import TaskTest, test_main
from task7.cases import PARTS, cases
from task7.cases.model import MODEL

KERNELS = {"kernels": ("layernorm and bias_gelu only", tuple(PARTS))}
TEST = TaskTest("task7", PARTS, cases, [MODEL], groups=KERNELS, built_of={"engine": tuple(PARTS)})

if __name__ == "__main__":
    raise SystemExit(test_main(TEST))

"""python -m task1.compile: builds this task's operators."""

from common.cli.compile import compile_main

if __name__ == "__main__":
    raise SystemExit(compile_main("task1"))

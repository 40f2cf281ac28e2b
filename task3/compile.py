"""Compiles task 3 and says what the compiler found.

python -m task3.compile [--solution] [--backend cuda|simulator] [--arch sm_XX] [--verbose]
"""

from common.cli import compile_main

if __name__ == "__main__":
    raise SystemExit(compile_main("task3"))

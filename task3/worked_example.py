"""python -m task3.worked_example: the handout's example through your add_tile."""

from task3.tools.worked_example import main

if __name__ == "__main__":
    raise SystemExit(main())

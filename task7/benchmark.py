"""python -m task7.benchmark: GPT-2's time to first token and time between tokens, on a GPU."""

from task7.tools.benchmark import main

if __name__ == "__main__":
    raise SystemExit(main())

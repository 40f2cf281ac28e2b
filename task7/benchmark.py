"""python -m task7.benchmark: how long GPT-2 takes to its first token and from token to token, on a GPU."""

from task7.tools.benchmark import main

if __name__ == "__main__":
    raise SystemExit(main())

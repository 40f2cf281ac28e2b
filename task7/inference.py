"""python -m task7.inference: a GPT-2 tells a story through your kernels."""

from task7.tools.inference import main

if __name__ == "__main__":
    raise SystemExit(main())

"""python -m task7.inference_ref: task7.inference with transformers' own attention and cache."""

from task7.tools.inference import main

if __name__ == "__main__":
    raise SystemExit(main(reference=True))

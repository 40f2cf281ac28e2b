"""python -m task5.train: trains a small Transformer with dense and with strided attention."""

from task5.tools.train import main

if __name__ == "__main__":
    raise SystemExit(main())

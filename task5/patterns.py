"""python -m task5.patterns: draws which scores your kernels compute, and which of them count."""

from task5.tools.patterns import main

if __name__ == "__main__":
    raise SystemExit(main())

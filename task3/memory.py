"""python -m task3.memory: how much memory your flash_attention takes."""

from task3.tools.memory import main

if __name__ == "__main__":
    raise SystemExit(main())

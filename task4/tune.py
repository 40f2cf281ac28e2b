"""python -m task4.tune: finds the fastest tiles for this machine's GPU and writes them into tiles.h."""

from task4.tools.tuning.tune_command import main

if __name__ == "__main__":
    raise SystemExit(main())

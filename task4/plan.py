"""python -m task4.plan: what a choice of tiles costs, before any code is written."""

from task4.tools.tuning.plan_command import main

if __name__ == "__main__":
    raise SystemExit(main())

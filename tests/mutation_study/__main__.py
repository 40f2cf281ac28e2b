"""How good is the diagnosis? Makes mistakes by rule in every gap of every solution and checks the test's report.

python tests/mutation_study --task task2,task3 --sample 20 --seed 1
python tests/mutation_study --sample 10 --planted --hits
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1] / "helpers"))
    from study import main

    raise SystemExit(main())

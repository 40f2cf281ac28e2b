"""python -m common.run FILE.cu [args]: builds and runs any CUDA program, on the GPU or in the simulator.

--check and --profile look inside its kernels; `python -m common.run --help` lists the rest.
"""

from __future__ import annotations

from common.cli.run import run_main

if __name__ == "__main__":
    raise SystemExit(run_main())

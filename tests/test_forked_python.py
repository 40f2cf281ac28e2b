"""tests/helpers/forked_python.py runs programs as a fresh interpreter does."""

import os
import subprocess
import sys

import pytest
from forked_python import run_python

PROGRAM = """
import multiprocessing, os, sys
import other

def square(x):
    return x * x

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        squares = pool.map(square, [3])
    print(sys.argv[1:], os.getcwd(), os.environ.get("MINE"), other.NAME, squares, __spec__.name, sys.stdin.read())
    print("to stderr", file=sys.stderr)
    sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "other.py").write_text("NAME = 'found on PYTHONPATH'")
    return tmp_path


def test_as_a_fresh_interpreter(folder):
    environment = os.environ | {"MINE": "yes", "PYTHONPATH": str(folder / "library")}
    arguments = ["-m", "program", "3", "two words"]
    fresh = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
    )
    done = run_python(arguments, folder, environment, 300)
    assert fresh.returncode == 3 and "found on PYTHONPATH [9] program" in fresh.stdout
    assert (done.returncode, done.stdout, done.stderr) == (3, fresh.stdout, fresh.stderr)


@pytest.mark.parametrize(
    "program, status, said",
    [
        ("import os; os._exit(5)", 5, ""),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
    ],
)
def test_how_it_ended(folder, program, status, said):
    done = run_python(["-c", program], folder, os.environ, 300)
    assert done.returncode == status and said in done.stderr


def test_an_endless_program_is_killed(folder):
    with pytest.raises(subprocess.TimeoutExpired):
        run_python(["-c", "while True: pass"], folder, os.environ, 0.5)
    assert run_python(["-c", "print(1)"], folder, os.environ, 300).stdout == "1\n"

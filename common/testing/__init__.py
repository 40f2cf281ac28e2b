"""Testing for correctness: cases, verdicts, points.

case            Case, Verdict
calling         calls a case's operator in poisoned and guarded memory
worker/         the same in a separate process, which may crash; for student Python
runner/         for everything else: a program without Python in which the simulator runs kernels
judging         judge(case, ops): checks one case against float64
run             run_cases: many cases
probing         diagnosis by additional calls: the weights of a fused kernel, the origin of NaN in its output
showing         --show: a case in numbers
stack           makes the call stack in the simulator's messages readable
failures        groups related failures and describes them
next_steps      which flags to try next
points, report  the points of a run, and the printed report
measurement     parts of a test that do not consist of cases: timings, generated text
cases/          cases for any attention, softmax or layer
case_choice     --case and --list
first_operator  which operator a case calls
python_side     the Python file that goes with a task's operators
watching        records the arguments and results of that file's functions
python_values   the first of those calls with a wrong result
python_lines    the lines of a Python function that compute a value
results         Results.md
"""

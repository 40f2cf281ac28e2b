"""Is it right? Cases, verdicts, points.

case            Case, Verdict
calling         calls a case's operator in poisoned and guarded memory
worker/         the same in a process of its own, which may crash: what is the student's Python
runner/         what is not: a program without Python, in which the simulator runs kernels
judging         judge(case, ops): one case against float64
run             run_cases: many of them
probing         what further calls tell: the weights of a fused kernel, where NaN in its output come from
showing         --show: a case in numbers
stack           the call stack in the simulator's messages, as a student reads it
failures        which failures belong together, and what they are
only_these      what the cases that fail have in common
next_steps      which flags would help now
points, report  what a run earns, and how it is printed
measurement     parts of a test that are not made of cases: times, texts of a model
cases/          cases for any attention, softmax or layer
case_choice     --case and --list
first_operator  which operator a case calls
python_side     the Python file that belongs to a task's operators
watching        what the functions of such a file were given and gave
python_values   the first of them that gave something wrong
python_lines    the lines of a Python function that a value is made in
results         Results.md
"""

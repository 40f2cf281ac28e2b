"""The command lines of taskN/compile.py and taskN/test.py.

options       options shared by all commands: --variant, --backend, --arch
compile       compile_main
test          test_main
look_inside   --check and --profile
failing_cases diagnoses failing cases: findings of the checked build, and the whole report
tried_edits   finds a single edit of the student's kernels that makes them pass
"""

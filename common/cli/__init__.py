"""The command lines of taskN/compile.py and taskN/test.py.

options       what every command line takes: --variant, --backend, --arch
compile       compile_main
test          test_main
look_inside   --check and --profile
failing_cases what is wrong with the cases that fail: what the checked build finds in them, and the whole report
tried_edits   which single edit of the student's kernels makes them pass
"""

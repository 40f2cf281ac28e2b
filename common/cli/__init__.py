"""The command lines of taskN/compile.py and taskN/test.py.

options       what every command line takes: --variant, --backend, --arch
compile       compile_main
test          test_main
look_inside   --check and --profile
"""

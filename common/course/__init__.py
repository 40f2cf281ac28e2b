"""Commands for students and for instructors who run a class, from release to grades: `python -m common.course NAME`.

Each command is a module of this package with a docstring (its first line is the command's help), add_arguments(parser)
and run(options) -> exit status; `__main__` imports only the command that runs.
"""

"""A class from release to grades, and a student's day: `python -m common.course NAME`.

Each command is a module of this room with a docstring (its first line is the command's help), add_arguments(parser)
and run(options) -> exit status; `__main__` imports only the one that is called.
"""

"""Grading in separate processes, so that a submission cannot affect its verdict. ../README.md has the threat model.

submissions  reads a folder, an archive or a repository: the files that task.json names, and no others
clean_tree   the course without solutions, hidden cases and oracle, for the process that runs student code
sandbox      that process: bubblewrap, another user, or (with a loud warning) neither; its limits and its watcher
cgroup       limits enforced by the kernel, where control groups are available
boxes        all sandboxes of a submission: for building, for kernels, for Python
build, elf   in a sandbox: kernels -> a library, with nvcc as the judge of what a kernel is
modules      in a sandbox: the course's Python modules that no file there holds
inside       in a sandbox: forks a worker for each part that goes through Python
handle_server  in a sandbox: the functions that a student's Python may call, and the tensors behind its handles
torch_handles  torch as that Python sees it
worker       the grader's end of a worker or a runner
workshop     what all submissions of a class share
hidden       cases with other shapes and numbers than the published ones
one          grades one submission
salt         the secret from which inputs and hidden cases are derived
timed, speed speed points, on a GPU
made_up      a class of made-up submissions, for a rehearsal
outcome      the result of grading, as plain data
results      the files written from it: result.json, Gradescope's results.json, a page
gathered     class statistics: table, histogram, most failed cases, grades.csv
"""

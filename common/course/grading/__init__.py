"""Grading: processes apart, so that nothing a submission does touches the verdict. ../README.md has the threat model.

submissions  what is in a folder, an archive or a repository: the files that task.json names, and no others
clean_tree   the course without solutions, hidden cases and oracle, for the process in which student code runs
sandbox      such a process: bubblewrap, another user, or (said loudly) neither; what it may use, and who watches it
cgroup       limits that the kernel itself holds, where it can be asked
boxes        all sandboxes of a submission: for building, for kernels, for Python
build, elf   in a sandbox: kernels -> a library, with nvcc as the judge of what a kernel is
inside       in a sandbox: forks a worker for each part that goes through Python
handle_server  in a sandbox: the functions that a student's Python may call, and the tensors that it has handles of
torch_handles  torch as that Python sees it
worker       the grader's end of a worker, and of a runner
workshop     what all submissions of a class share
hidden       cases that are in no handout: other shapes, other numbers
one          grades one submission
salt         the secret that inputs and hidden cases are made from
timed, speed speed points, on a GPU
made_up      a class of made-up submissions, for a rehearsal
outcome      what grading gave, as plain data
results      the files that it becomes: result.json, Gradescope's results.json, a page
gathered     a class: table, histogram, what fails most, grades.csv
"""

"""Grading: three processes, so that nothing a submission does touches the verdict.

submissions  what is in a folder, an archive or a repository: the files that task.json names, and no others
clean_tree   the course without solutions, hidden cases and oracle, for the process in which student code runs
sandbox      that process: bubblewrap, another user, or (said loudly) neither; what it may use, and who watches it
cgroup       limits that the kernel itself holds, where it can be asked
inside       what it does: it builds, and forks a worker per part
worker       the grader's end of such a worker
hidden       cases that are in no handout: other shapes, other numbers
one          grades one submission
flags        what a human should look at
salt         the secret that inputs and hidden cases are made from
timed, speed speed points, on a GPU
made_up      a class of made-up submissions, for a rehearsal
outcome      what grading gave, as plain data
results      the files that it becomes: result.json, Gradescope's results.json, a page
gathered     a class: table, histogram, what fails most, grades.csv
"""

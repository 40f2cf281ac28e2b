"""Is the diagnosis any good? Mistakes made by rule in the gaps of the solutions, and what the test says of each.

mutation        Mutation, Mutant: one mistake, and what kinds there are
c_code          the code of a gap as a tree
c_nodes         what rules ask of it; c_scope: which variables a place knows
c_rules         mistakes in CUDA C++; python_rules: in Python
c_rules_fresh   further ones, in expressions, written when the diagnosis was built and without a look at it;
                c_rules_fresh_statements: in statements and barriers; python_rules_fresh: in Python
collected       all mutants of a task, and the sets that they fall into
kept_answers    right and wrong answers that are computed once for all mutants
building        a task's mutants in one library, and the workers that run them
observing       what the test's report claims of a mutant
expected        what counts as right, declared for every rule
deciding        from the claims to a verdict
reviewed        those that are equivalent, each with its reason: equivalent.json
remembered      what was seen, kept by content
table           the figures
"""

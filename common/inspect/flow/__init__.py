"""Data flow analysis of a wrong output, from a recording of every access and the dependencies of each element.

trace         the accesses of all launches, one element each, in order
sources       which input element each read delivers, also through shared memory
reached       what an element of the correct answer depends on; what can reach a thread's results
run           one call with all of this, and elements in words: "key[0, 1, 16:32, :]"
stores, reads mismatches, each as a finding
wrong_value   a value that is wrong although all its dependencies are present: the lines that compute it
partial       how much of the partial results that warps or threads store for a row is correct
stages        the first of several launches with a wrong result
concluded     runs a failing case and analyzes it; reports the first of these that applies
"""

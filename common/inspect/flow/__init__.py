"""What flowed into a wrong output: from a recording of every access, and what each element depends on.

trace         the accesses of all launches, an element each, in their order
sources       which element of an input each read delivers, also through shared memory
reached       what an element of the right answer depends on; what can be in what a thread computes
run           one call with all of this, and elements in words: "key[0, 1, 16:32, :]"
stores, reads what does not fit, each as a finding
wrong_value   a number that is wrong although all that it depends on is there: the lines that it is made in
partial       how far what warps or threads store of a row of attention, of a softmax, is right
stages        the first of several launches whose result is wrong
concluded     runs a failing case and follows it: the first of these that holds
"""

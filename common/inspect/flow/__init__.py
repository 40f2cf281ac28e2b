"""What flowed into a wrong output: from a recording of every access, and what each element depends on.

trace         the accesses of all launches, an element each, in their order
sources       which element of an input each read delivers, also through shared memory
reached       which elements of the inputs can be in what a thread computes
needs         which elements of the inputs an element of the right answer depends on
run           one call with all of this
not_stored, other_element, not_read, not_needed, stored_elsewhere      what does not fit, each as a finding
silent        of an input that no thread reads: the lines that index an array and never ran
partial_states, partial_rows      how far what warps or threads store of a row of attention, of a softmax, is right
wrong_value   a number that is wrong although all that it depends on is there: the lines that it is made in
stages        the first of several launches whose result is wrong
concluded     the first of these that holds
looked        runs a failing case and follows it
slices_said   a set of elements in words: "key[0, 1, 16:32, :]"
"""

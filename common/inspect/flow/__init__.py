"""What flowed into a wrong output: from a recording of every access, and what each element depends on.

trace         the accesses of all launches, an element each, in their order
sources       which element of an input each read delivers, also through shared memory
reached       which elements of the inputs can be in what a thread computes
needs         which elements of the inputs an element of the right answer depends on
concluded     what of the two does not fit, as findings with their lines
slices_said   a set of elements in words: "key[0, 1, 16:32, :]"
"""

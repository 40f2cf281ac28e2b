"""Known wrong answers of students; words.json has the sentence for each.

known       Mistake and Words; wrong answers of any operator, and swapped axes of an array
formulas    one wrong line of a computation, or a wrong index
gemm        matrix multiplication
softmax     softmax and online softmax
merge       merging partial results
scores      attention scores
attention   attention: wrong scores propagated to the output, and more
tile_loop   attention with a loop over tiles
"""

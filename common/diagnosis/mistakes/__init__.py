"""Wrong answers that students are known to give; words.json has the sentence of each.

known       Mistake and Words; wrong answers of any output, and axes of an array exchanged
formulas    one line of a computation, or an index, that is wrong
gemm        of matrix products
softmax     of softmax and online softmax
merge       of merged partial results
scores      of scores alone
attention   of attention: those of the scores followed to the output, and more
tile_loop   of attention tile by tile
inferring   which elements a product was made of
weights     which weights the output was made with, and which scores these were made of
"""

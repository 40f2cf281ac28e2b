"""Wrong answers that students are known to give; words.json has the sentence of each.

known             Mistake and Words; those of softmax and any output
gemm              of matrix products
scores, masks     of scores alone
attention_output  of attention: those of the scores followed to the output, and more
online_softmax    of running maxima and sums
merge             of merged partial results
tile_loop         of attention tile by tile
layouts           of any operator: two axes of an array exchanged
formulas          one line of a computation, or an index, that is wrong
softmax_formulas  those of softmax, of the online softmax and of merging
attention_indices those of attention in memory
inferring         which elements a product was made of
weights           which weights the output was made with
read_scores       which scores these weights were made of
"""

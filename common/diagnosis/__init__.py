"""What a wrong output is.

diagnose      diagnose(out, ref, ...): the known mistakes that it equals, or where it is wrong
locating      where: rows, columns, heads, tile edges, unwritten elements
stages        each stage of attention: the expected values next to the actual ones
row_factors   a softmax whose rows are wrong by a factor
slices        rows and columns that are never computed, or hold what belongs in others
mistakes/     wrong answers that students are known to give
"""

"""What a wrong output is.

diagnose      diagnose(out, ref, ...): the known mistakes that it equals, or where it is wrong
locating      where: rows, columns, heads, tile edges, unwritten elements
stages        each stage of attention: the expected values next to the actual ones
slices        rows and columns that are never computed, hold what belongs in others, or are wrong by a factor
mistakes/     wrong answers that students are known to give
"""

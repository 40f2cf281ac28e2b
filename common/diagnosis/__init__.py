"""Diagnosis of wrong outputs.

diagnose      diagnose(out, ref, ...): the known mistakes that an output matches, or where it is wrong
locating      location of errors: rows, columns, heads, tile edges, unwritten elements
stages        expected next to actual values for each stage of attention
slices        rows and columns that are not computed, contain another's values, or are off by a factor
mistakes/     known wrong answers of students
"""

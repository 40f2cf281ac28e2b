"""Small launches, recorded access by access in the checked simulator, for replay in a browser.

recording     reads the simulator's recording
limits        size limits, and suggestions for cases that exceed them
tiles         finds the tiles in a dynamic shared memory array
packing       compact encoding of a recording for the page
"""

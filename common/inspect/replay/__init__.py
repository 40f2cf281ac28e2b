"""Small launches, recorded access by access in the checked simulator, to be played back in a browser.

recording     what the simulator recorded, read
limits        which case is too large, and what to do then
tiles         the tiles that a kernel makes of one dynamic array of shared memory
packing       a recording as the page wants it: few bytes
"""

"""What was found inside kernels, as one HTML page that needs no network.

document      the page around its data: style, scripts
sources       the source files that a page shows, and places in them
look_page     --profile and --check: counters beside the lines, findings, roofline, occupancy
replay_page   --replay: a small launch, played back
assets/       the page's style and scripts, plain CSS and JavaScript
"""

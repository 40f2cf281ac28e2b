"""Inspection results as one self-contained HTML page.

document      the page template: style, scripts, data
sources       the source files that a page shows, and places in them
look_page     --profile and --check: counters next to the lines, findings, roofline, occupancy
replay_page   --replay: replay of a small launch
assets/       the page's style and scripts, plain CSS and JavaScript
"""

"""How the report's page looks: light or dark as the reader's machine is set, narrow screens included."""

STYLE = """
:root { color-scheme: light dark; --line: #8884; --ours: #2a7de1; --peer: #8a8f98; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
tr.task th, tr.task td { padding-top: 1rem; font-weight: 600; }
.wide { overflow-x: auto; }
.tests tr:not(.task) td:not(:nth-child(4)) { white-space: nowrap; }
.tests td:nth-child(4) { min-width: 16em; }
.sum { font-size: 1.5rem; font-weight: 600; }
.bars td { white-space: nowrap; }
.bars td:last-child { width: 45%; min-width: 8rem; }
.track { background: var(--line); border-radius: 3px; }
.bar { height: .9rem; background: var(--peer); border-radius: 3px; }
.bar.ours { background: var(--ours); }
img { max-width: 100%; background: white; border-radius: 6px; margin: .5rem 0; }
h3 code { overflow-wrap: anywhere; }
"""

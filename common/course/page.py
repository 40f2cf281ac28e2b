"""The style of the report page: that of the other pages (common/inspect/page), plus bars."""

from common.inspect.page.document import asset

STYLE = (
    asset("page.css")
    + """
main { max-width: 74rem; }
.card { margin: .9rem 0; overflow-x: auto; }
.card > table { width: 100%; }
.card h2 { display: flex; gap: .3rem 1rem; flex-wrap: wrap; align-items: baseline; }
.card h2 span { font-weight: 400; font-size: .88rem; color: var(--soft); }
h3 code { overflow-wrap: anywhere; }
.tests td, .bars td { white-space: nowrap; width: 8rem; }
.tests td:nth-child(5) { white-space: normal; width: auto; }
.track { background: var(--cell); border-radius: 3px; min-width: 5rem; width: 100%; margin-top: .3rem; }
.sum .track { max-width: 30rem; }
.bar { height: .8rem; background: var(--soft); border-radius: 3px; }
.bar.ours { background: var(--read); }
.bar.full { background: var(--good); }
.bars td:last-child, .tests td:nth-child(2) { width: 13rem; }
.bars td:last-child { width: 45%; }
img { max-width: 100%; margin: .5rem 0; }
@media (max-width: 640px) {
  .tests tr { display: block; padding: .3rem 0; border-top: 1px solid var(--line); }
  .tests td { display: inline-block; padding-right: .8rem; width: auto; }
  .tests td:nth-child(2) { width: 45%; }
  .bars td:nth-child(3) { display: none; }
}
"""
)

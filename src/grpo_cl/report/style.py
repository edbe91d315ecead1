"""How the page looks, in print too."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""What a browser may do with the page: show it. Nothing is fetched and no script runs."""

CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 2rem 1.5rem 4rem; color: #222; background: #fff;
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.8rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.75rem 0 .75rem; padding-top: .75rem; border-top: 1px solid #ddd; }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
.lead { color: #555; margin: 0 0 1.5rem; overflow-wrap: anywhere; }
.note { color: #555; font-size: .875rem; max-width: 46rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .75rem; }
.card { border: 1px solid #ddd; border-radius: .5rem; padding: .75rem 1rem; }
.card b { display: block; font-size: 1.7rem; font-weight: 600; line-height: 1.2;
  font-variant-numeric: tabular-nums; }
.card span.what { display: block; font-weight: 600; }
.card small { color: #555; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem; text-align: right; vertical-align: top; }
th { font-weight: 600; text-align: left; overflow-wrap: anywhere; }
thead th { border-bottom: 2px solid #bbb; vertical-align: bottom; }
thead th:not(:first-child):not(.text) { text-align: right; }
tbody tr + tr > * { border-top: 1px solid #eee; }
table.matrix td { min-width: 6.5rem; text-align: center; border: 3px solid #fff; }
table.matrix thead th:not(:first-child) { text-align: center; border-bottom: 0; }
table.matrix td.learned { outline: 2.5px solid #d55e00; outline-offset: -4px; }
table.matrix tr.floor > * { color: #555; font-weight: 400; font-style: italic; }
td.text { text-align: left; max-width: 40rem; overflow-wrap: anywhere; }
td.worse { color: #a33d00; font-weight: 600; }
td.better { color: #00664a; font-weight: 600; }
.missing { color: #767676; }
figure { margin: 1rem 0; }
svg { max-width: 100%; height: auto; }
details { margin: 1rem 0; }
summary { cursor: pointer; font-weight: 600; }
pre { background: #f6f6f6; padding: 1rem; border-radius: .5rem; font-size: .8125rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
code { font-size: .875em; overflow-wrap: anywhere; }
footer { margin-top: 3rem; color: #555; font-size: .875rem; }
@media print { body { max-width: none; padding: 0; } section { break-inside: avoid; } }
"""

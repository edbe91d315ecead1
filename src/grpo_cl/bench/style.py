"""How the page of a campaign looks: by day, by night, on a phone and in print."""

CSS = """
:root { color-scheme: light dark; --ink: #222; --soft: #555; --paper: #fff; --rule: #ddd;
  --worse: #a33d00; --better: #00664a; --hue0: #0072b2; --hue1: #d55e00; --hue2: #009e73;
  --hue3: #b0578d; --hue4: #9a6b00; --hue5: #2b7fb0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --soft: #b4b4b4; --paper: #16181b; --rule: #3a3d42; --worse: #ff9d66;
    --better: #5fd3ac; --hue0: #5db3e6; --hue1: #ff8f4a; --hue2: #41c9a0; --hue3: #e29ac4;
    --hue4: #e6b43c; --hue5: #8fd0f5; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 4rem; color: var(--ink);
  background: var(--paper);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.8rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.75rem 0 .75rem; padding-top: .75rem;
  border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; overflow-wrap: anywhere; }
p, li { overflow-wrap: anywhere; max-width: 50rem; }
.lead, .note, footer { color: var(--soft); }
.note, footer { font-size: .875rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; overflow-wrap: anywhere; }
th, td { padding: .35rem .7rem; text-align: right; vertical-align: top; }
th { font-weight: 600; text-align: left; }
td { white-space: nowrap; }
td.text { text-align: left; }
td.long { white-space: normal; min-width: 14rem; }
td small { color: var(--soft); display: block; }
thead th { border-bottom: 2px solid var(--rule); vertical-align: bottom; }
thead th:not(:first-child):not(.text) { text-align: right; }
tbody tr + tr > * { border-top: 1px solid var(--rule); }
td.worse { color: var(--worse); font-weight: 600; }
td.better { color: var(--better); font-weight: 600; }
.missing { color: var(--soft); }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(24rem, 100%), 1fr));
  gap: 1.25rem; }
.grid > * { min-width: 0; margin: 0; }
table.matrix th, table.matrix td { padding: .35rem .45rem; }
table.matrix td { text-align: center; border: 2px solid var(--paper); }
table.matrix td.learned { outline: 2.5px solid #d55e00; outline-offset: -3px; }
table.matrix thead th:not(:first-child) { text-align: center; border-bottom: 0; }
figure { margin: 1rem 0; }
svg { display: block; max-width: 100%; height: auto; }
svg.forest { min-width: 34rem; }
svg.key { display: inline-block; vertical-align: -.1em; }
svg text { fill: var(--ink); font-size: 13px; }
svg .tick { fill: var(--soft); font-size: 12px; }
svg .ruler, svg .zero { stroke: var(--rule); }
svg .zero { stroke: var(--soft); stroke-dasharray: 3 3; }
svg .whisker { stroke: var(--hue0); stroke-width: 2.5; }
svg .dot { fill: var(--hue0); }
svg polyline { fill: none; }
svg .training { stroke: var(--soft); stroke-width: 1; opacity: .7; }
svg .score { stroke-width: 1.8; stroke-dasharray: 4 3; }
svg .hue0 { --hue: var(--hue0); } svg .hue1 { --hue: var(--hue1); }
svg .hue2 { --hue: var(--hue2); } svg .hue3 { --hue: var(--hue3); }
svg .hue4 { --hue: var(--hue4); } svg .hue5 { --hue: var(--hue5); }
svg .score { stroke: var(--hue); } svg .mark { fill: var(--hue); }
.entry { margin-right: 1.25rem; white-space: nowrap; }
details { margin: 1rem 0; }
summary { cursor: pointer; font-weight: 600; }
pre { padding: 1rem; border: 1px solid var(--rule); border-radius: .5rem; font-size: .8125rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
footer { margin-top: 3rem; }
@media print { body { max-width: none; padding: 0; } section { break-inside: avoid; } }
"""

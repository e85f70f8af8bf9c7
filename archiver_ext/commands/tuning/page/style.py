"""Style of a page in light and dark colours, and the pattern of padding."""

from __future__ import annotations

PATTERN = (
    '<svg class="definitions" aria-hidden="true" width="0" height="0"><defs>'
    '<pattern id="padding" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="padding-ground" width="6" height="6"/><rect class="padding-stripe" width="2.4" height="6"/>'
    "</pattern></defs></svg>"
)
"""Hatching of padding, which all drawings refer to."""

STYLE = """\
:root { color-scheme: light dark; --ink: #1f2933; --faint: #5d6b7a; --rule: #d9dee4; --paper: #ffffff; --card: #f5f7f9;
  --useful: #3b6fb6; --ground: #fbe3c8; --stripe: #d9822b;
  --call0: #3b6fb6; --call1: #b4532a; --call2: #2f7d5b; --call3: #8257a6; --call4: #0f7c8c; --call5: #a3446f }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --faint: #9fabb8; --rule: #39424d; --paper: #14181d; --card: #1d232a;
    --useful: #6f9fdc; --ground: #4a3621; --stripe: #e09a4a;
    --call0: #6f9fdc; --call1: #e08a5c; --call2: #5fb48d; --call3: #b48fd6; --call4: #4fb6c4; --call5: #d97fa6 }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 66rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; overflow-wrap: anywhere }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .4rem }
h3 { font-size: 1rem; margin: 1.4rem 0 .2rem }
p { margin: .35rem 0; max-width: 48rem }
.faint { color: var(--faint) }
.cards { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.2rem 0; padding: 0; list-style: none }
.cards li { flex: 1 1 10rem; background: var(--card); border: 1px solid var(--rule); border-radius: .5rem;
  padding: .7rem .9rem; line-height: 1.3 }
.cards strong { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums }
.cards span { color: var(--faint); font-size: .875rem }
.note { background: var(--card);
  border-left: 4px solid var(--stripe); padding: .5rem .9rem; border-radius: 0 .3rem .3rem 0 }
.key { display: inline-flex; flex-wrap: wrap; gap: .3rem 1.4rem; margin: .5rem 0; padding: 0;
  list-style: none; font-size: .9rem }
.key svg { width: 1.6em; height: .8em; margin: 0 .45em 0 0; display: inline-block; vertical-align: baseline }
.definitions { position: absolute }
figure { margin: .6rem 0 1rem; overflow-x: auto }
figure svg { width: 100%; min-width: 44rem; height: auto; display: block;
  font: 13px system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif }
svg text { fill: var(--ink) }
svg text.strong { font-size: 15px; font-weight: 600 }
svg text.faint { fill: var(--faint) }
.axis { stroke: var(--faint) }
.edge { stroke: var(--ink); opacity: .65 }
.grid { stroke: var(--rule) }
.useful { fill: var(--useful) }
.padded { fill: url(#padding) }
.padding-ground { fill: var(--ground) }
.padding-stripe { fill: var(--stripe) }
.all { fill: var(--faint) }
rect.idle { fill: none; stroke: var(--faint); stroke-dasharray: 3 3; stroke-opacity: .8 }
.call0 { fill: var(--call0); stroke: var(--call0) } .call1 { fill: var(--call1); stroke: var(--call1) }
.call2 { fill: var(--call2); stroke: var(--call2) } .call3 { fill: var(--call3); stroke: var(--call3) }
.call4 { fill: var(--call4); stroke: var(--call4) } .call5 { fill: var(--call5); stroke: var(--call5) }
rect[class^="call"] { stroke: none }
.line { fill: none; stroke-width: 2 }
figure rect { shape-rendering: crispEdges }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; margin: .3rem 0 1rem }
caption { text-align: left; font-weight: 600; padding: .3rem 0 }
th, td { text-align: right; padding: .3rem 0 .3rem 1.4rem; border-bottom: 1px solid var(--rule); vertical-align: top }
th:first-child, td:first-child { text-align: left; padding-left: 0 }
th, td { white-space: nowrap }
td.list { white-space: normal; min-width: 14rem }
th { color: var(--faint); font-weight: 500 }
summary { cursor: pointer; color: var(--faint); padding: .2rem 0 }
@media print { details > * { display: block } }"""
"""CSS of the page."""

"""Positions of values in a YAML text, for an editor of it."""

from __future__ import annotations

from typing import NamedTuple

import yaml

from ..diagnostics import Location


class SourceSpan(NamedTuple):
    """Position of a key's value in a text, in characters."""

    key_end: int
    """End of the key, before its colon."""
    start: int
    end: int


def find_span(text: str, location: Location) -> SourceSpan | None:
    """Find the value at `location` in a text that `parse_config` accepts; None if there is none.

    >>> text = "a: {b: [1, 2]} # c"
    >>> place = find_span(text, ("a", "b"))
    >>> text[place.start:place.end], text[:place.key_end]
    ('[1, 2]', 'a: {b')
    """
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    found: tuple[yaml.Node, yaml.Node] | None = None
    for name in location:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        found = next(((key, value) for key, value in pairs if key.value == name), None)
        node = None if found is None else found[1]
    return None if found is None else SourceSpan(found[0].end_mark.index, found[1].start_mark.index, _end(found[1]))


def _end(node: yaml.Node) -> int:
    # In YAML a list or mapping without brackets ends only where the next node begins.
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)

"""Merge keys (`<<`) of a YAML text: how many entries they copy."""

from __future__ import annotations

import yaml

from .nodes import TAG

MAX_MERGED = 10_000
"""Entries that all merge keys of a text may copy; nested ones can double them at each level."""


class MergedEntries:
    """The number of entries that merge keys copy, counted without copying them.

    >>> merged = MergedEntries()
    >>> merged.count(yaml.compose("[&a {x: 1, y: 2}, &b {<<: *a, z: 3}, {<<: [*a, *b]}]"))
    >>> merged.total
    7
    """

    def __init__(self) -> None:
        self.total = 0
        self._sizes: dict[int, int] = {}

    @property
    def is_excessive(self) -> bool:
        """Whether more than `MAX_MERGED` entries are copied."""
        return self.total > MAX_MERGED

    def count(self, node: yaml.Node | None) -> None:
        """Count those of a node and of what it holds; nodes that were counted before do not count again."""
        self._size(node)

    def _size(self, node: yaml.Node | None) -> int:
        """Return the entries of a mapping, or of all mappings of a list, as a merge key copies them."""
        if self.is_excessive or not isinstance(node, yaml.CollectionNode):
            return 0
        if id(node) not in self._sizes:
            self._sizes[id(node)] = MAX_MERGED + 1  # until it is known: one that is merged into itself is excessive
            is_mapping = isinstance(node, yaml.MappingNode)
            self._sizes[id(node)] = self._mapping(node) if is_mapping else sum(map(self._size, node.value))
        return self._sizes[id(node)]

    def _mapping(self, node: yaml.CollectionNode) -> int:
        own = merged = 0
        for key, value in node.value:
            self._size(key)
            inside = self._size(value)
            if key.tag == f"{TAG}merge":
                merged += inside
            else:
                own += 1
        self.total += merged
        return own + merged

"""Tables for people: columns of text, then columns of numbers."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table


def make_table(*texts: str, numbers: Iterable[str]) -> Table:
    """Make a table without rows, with these headings; numbers are aligned to the right."""
    table = Table(*texts, highlight=False)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table

"""The lowest releases of torch and of the C and C++ libraries that a program needs on its host.

The release of torch is the lowest one that has every operator of the program's source; `python -m tools.operators`
writes the table, from the releases themselves. A shared library names the versions of the symbols that it imports, such
as `GLIBC_2.14` or `GLIBCXX_3.4.22`, in its table of strings
(https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/symversion.html).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ...backends.program_source.write import BINDINGS
from ...backends.versions import release

_TABLE = Path(__file__).with_name("operators_since.json")
_WITHOUT_SCHEMAS = ("prims", "prim", "quantized", "mkldnn", "_quantized", "higher_order")
"""Namespaces of torch whose operators have no schemas in its wheels: nothing is known of earlier releases."""

_OF_FUNCTION = {function: str(operator) for operator, function in BINDINGS.items()}


def lowest_torch(source: str, here: str) -> str | None:
    """Return the lowest release that runs a program's source; None if any does.

    `here` is the release that made it.

    >>> source = '''
    ... def program(tensors):
    ...     aten_rms_norm = torch.ops.aten.rms_norm.default
    ...     def forward(x):
    ...         return (aten_rms_norm(x, [8]), )
    ... '''
    >>> lowest_torch(source, "2.13.0")
    '2.4.0'
    """
    table = _table()
    found = {_since(*call, table.operators, here) or table.oldest for call in _calls(ast.parse(source))}
    if found and release(here) > release(table.newest):
        return here  # its operators may be newer than the table
    return max(found - {table.oldest}, key=release, default=None)


def _since(operator: str, call: ast.Call, operators: Mapping[str, Mapping[str, list[str]]], here: str) -> str | None:
    """The release from which on a call of an operator is understood; None if every one does."""
    if operator.partition(".")[0] in _WITHOUT_SCHEMAS:
        return here
    changes = operators.get(operator)
    if changes is None:
        return None
    given, names = len(call.args), {keyword.arg for keyword in call.keywords} - {None}
    fitting = (version for version, own in changes.items() if given <= len(own) and names <= set(own))
    return next(fitting, here)


def _calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Yield the operators of torch with their calls; a source names them before it calls them."""
    assigned = {
        node.targets[0].id: ast.unparse(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.Attribute)
    }
    named = {
        name: _OF_FUNCTION.get(value, value.removeprefix("torch.ops."))
        for name, value in assigned.items()
        if value in _OF_FUNCTION or value.startswith("torch.ops.")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in named:
            yield named[node.func.id], node


class _Table(NamedTuple):
    oldest: str
    newest: str
    operators: Mapping[str, Mapping[str, list[str]]]
    """Arguments of each operator by the releases that changed them. Whatever is not here is older than all."""


@cache
def _table() -> _Table:
    return _Table(**json.loads(_TABLE.read_text(encoding="utf-8")))


_VERSION = re.compile(rb"\0(GLIBC|GLIBCXX|CXXABI)_(\d+(?:\.\d+)+)(?=\0)")


def symbol_versions(libraries: Iterable[Path]) -> dict[str, str]:
    """Return the highest version of each library's symbols that some shared libraries import.

    >>> symbol_versions([])
    {}
    """
    found: dict[str, tuple[int, ...]] = {}
    for library in libraries:
        for kind, version in _VERSION.findall(library.read_bytes()):
            numbers = tuple(map(int, version.decode().split(".")))
            found[kind.decode()] = max(found.get(kind.decode(), ()), numbers)
    return {kind: ".".join(map(str, numbers)) for kind, numbers in sorted(found.items())}

"""The class of a source that uses all the others, found on its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping


def outermost_class(source: str, served: Mapping[str, bool]) -> str | None:
    r"""Return the class that uses all the others and is used by none of them; None if it is not certain.

    `served` tells for each class of the source whether it has a forward(). One that has is not used by being a base
    class alone: base and subclass can both be meant. A class is also used through functions and variables of the file.

    >>> outermost_class("class A: ...\nclass B:\n    def __init__(self): self.a = A()", {"A": True, "B": True})
    'B'
    >>> outermost_class("class A: ...\nclass B(A): ...", {"A": True, "B": True})
    """
    uses = {name: used for statement in ast.parse(source).body for name, used in _uses(statement, served)}
    reached = {name: _reached(name, uses) for name in served}
    whole = [name for name in served if reached[name] >= served.keys() - {name}]
    found = [name for name in whole if not any(name in reached[other] for other in served if other != name)]
    return found[0] if len(found) == 1 else None


def _uses(statement: ast.stmt, served: Mapping[str, bool]) -> Iterator[tuple[str, set[str]]]:
    """The names that a statement at the top of the file defines, each with the names that it reads."""
    if isinstance(statement, ast.ClassDef):
        bases = {name for base in statement.bases for name in _names([base]) if not served.get(name, False)}
        yield statement.name, bases | _names([*statement.body, *statement.keywords, *statement.decorator_list])
    elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        yield statement.name, _names([statement])
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                yield target.id, _names([statement.value])
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
        yield statement.target.id, _names([statement.value])


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    walked = (inner for node in nodes for inner in ast.walk(node))
    return {node.id for node in walked if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _reached(name: str, uses: Mapping[str, set[str]]) -> set[str]:
    """All names that are used from one, directly and through others."""
    found: set[str] = set()
    pending = [name]
    while pending:
        new = uses.get(pending.pop(), set()) - found
        found |= new
        pending += new
    return found

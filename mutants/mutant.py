"""A mutant: a file with one operator, number or name replaced by cosmic-ray."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names


@dataclass(frozen=True)
class Change:
    """Lines of a file, before and after."""

    file: str
    """From the repository's root."""
    before: str
    after: str


@dataclass(frozen=True)
class Mutant:
    """A file's text with one change, in its first changed line."""

    change: Change
    line: int
    text: str


@dataclass(frozen=True)
class _Place:
    file: str
    operator: str
    occurrence: int


def draw_mutants(root: Path, files: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Draw that many mutants of the files at random, none of them twice; fewer if there are not so many."""
    places = [place for file in files for place in _places(file, (root / file).read_text(encoding="utf-8"))]
    random.Random(seed).shuffle(places)
    drawn: dict[Change, Mutant] = {}
    for place in places:
        if len(drawn) == count:
            break
        mutant = _mutant(place, (root / place.file).read_text(encoding="utf-8"))
        if mutant is not None:
            drawn.setdefault(mutant.change, mutant)
    return list(drawn.values())


def _places(file: str, source: str) -> Iterator[_Place]:
    tree = get_ast(source)
    nodes = list(ast_nodes(tree))
    for name in operator_names():
        kind = get_operator(name)
        if not kind.arguments():
            operator = kind()
            count = sum(1 for node in nodes for _ in operator.mutation_positions(node))
            yield from (_Place(file, name, number) for number in range(count))


def _mutant(place: _Place, source: str) -> Mutant | None:
    """The mutant; None if the change has no effect, or makes a file that Python cannot read."""
    text = mutate_code(source, get_operator(place.operator)(), place.occurrence)
    if text is None or not _differs(source, text):
        return None
    old, new = source.splitlines(), text.splitlines()
    first = next(number for number, (one, other) in enumerate(zip(old, new, strict=False)) if one != other)
    tail = next(number for number, (one, other) in enumerate(zip(old[::-1], new[::-1], strict=False)) if one != other)
    before, after = old[first : len(old) - tail], new[first : len(new) - tail]
    return Mutant(Change(place.file, _joined(before), _joined(after)), first + 1, text)


def _joined(lines: Sequence[str]) -> str:
    return "\n".join(line.strip() for line in lines)


def _differs(source: str, text: str) -> bool:
    """Whether the program differs, beyond annotations and whether values are frozen: both are for readers."""
    try:
        changed = ast.parse(text)
    except SyntaxError:
        return False
    return _behaviour(ast.parse(source)) != _behaviour(changed)


def _behaviour(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = ast.Constant(None)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if isinstance(node, ast.keyword) and node.arg == "frozen":
            node.value = ast.Constant(True)
    return ast.dump(tree)

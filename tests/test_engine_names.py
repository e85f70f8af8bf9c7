"""The registry of the backends is the only place in the package that names an engine."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from import_rules import source_files

from torchserve_neuron_lstm.backends import registry

ROOT = Path(__file__).parents[1]

ORDINARY_WORDS = {"eager", "native", "neuron"}
"""Names that are also ordinary words: they count only if they are the whole string."""

DEVICE_TYPES = {"cuda"}
"""Names that torch gives to a kind of device: files that ask for the device of a tensor name them."""

ALLOWED = {
    "config/fields.py": {"native", "inductor", "onnxruntime", "eager"},  # examples of a key, and its help
    "config/engine_choice.py": {"neuronx"},  # the help of compiler_args
    "archiver_ext/commands/init.py": {"inductor", "onnxruntime"},  # a comment in the YAML that it writes
}


def names_in(source: str) -> set[str]:
    """The engines that string literals name; docstrings do not count."""
    engines = set(registry.ENGINES) - DEVICE_TYPES
    return {name for text in literals(ast.parse(source)) for name in engines if names(text, name)}


def names(text: str, engine: str) -> bool:
    """Whether a string names an engine."""
    return text == engine or (engine not in ORDINARY_WORDS and re.search(rf"\b{engine}\b", text) is not None)


def literals(tree: ast.AST) -> Iterator[str]:
    """Every string that is not a statement of its own."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            yield from literals(node)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('x = ("native", "eager")', {"native", "eager"}),
        ('x = f"with {y}, or with backend: onnxruntime"', {"onnxruntime"}),
        ('x = "the model in eager mode, native code"', set()),
        ('def f():\n    """As inductor does."""\n    return 1', set()),
    ],
)
def test_names_are_found_in_literals(source: str, found: set[str]) -> None:
    """Tuples and messages count, docstrings do not; ordinary words are ignored."""
    assert names_in(source) == found


def test_no_file_outside_the_backends_names_an_engine() -> None:
    """A new engine is its own file and one row of the registry."""
    files = [file.relative_to(ROOT).as_posix() for file in source_files(ROOT)]
    named = {file: names_in((ROOT / file).read_text("utf-8")) for file in files if not file.startswith("backends/")}

    assert {file: found for file, found in named.items() if found} == ALLOWED

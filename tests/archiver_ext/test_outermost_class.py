"""The class that uses the others of a file is found only where it is certain."""

from __future__ import annotations

import re

import pytest

from torchserve_neuron_lstm.archiver_ext.outermost_class import outermost_class

BLOCK = "class Block: ...\n"


@pytest.mark.parametrize(
    "rest",
    [
        "class Model:\n    def __init__(self): self.block = Block()",
        "def make(): return Block()\nclass Model:\n    def __init__(self): self.block = make()",
        "BLOCKS = {'block': Block}\nclass Model:\n    def __init__(self, kind): self.block = BLOCKS[kind]()",
        "BLOCKS: dict = {'block': Block}\nclass Model:\n    blocks = BLOCKS",
        "class Model:\n    def __init__(self, block: Block): self.block = block",
    ],
)
def test_a_class_that_uses_the_others_is_found(rest: str) -> None:
    """Directly, or through functions and variables of the file."""
    assert outermost_class(BLOCK + rest, {"Block": True, "Model": True}) == "Model"


def test_a_chain_of_uses_is_followed() -> None:
    """The outermost class need not mention the innermost one."""
    source = f"{BLOCK}class Stack:\n    block = Block()\nclass Model:\n    stack = Stack()"
    assert outermost_class(source, {"Block": True, "Stack": True, "Model": True}) == "Model"


def test_a_base_class_without_forward_is_used_by_its_subclass() -> None:
    """Base and subclass can both be meant if the base can be served."""
    source = f"{BLOCK}class Model(Block): ..."
    assert outermost_class(source, {"Block": False, "Model": True}) == "Model"
    assert outermost_class(source, {"Block": True, "Model": True}) is None


@pytest.mark.parametrize(
    "rest",
    [
        "class Model: ...",
        "class Model: 'like Block()'",
        "class Model:\n    block = Block()\nclass Other:\n    block = Block()",
        "class Model:\n    def f(self): return Other()\nclass Other:\n    def f(self): return Model()",
    ],
)
def test_nothing_is_guessed(rest: str) -> None:
    """Classes that are not used, are used by two others, or use each other, leave a choice."""
    served = dict.fromkeys(re.findall(r"class (\w+)", BLOCK + rest), True)
    assert outermost_class(BLOCK + rest, served) is None

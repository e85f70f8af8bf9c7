"""Program at one bucket's sizes as a Python function of operators of every torch.

`source_export.py` writes it. Compilers that require an old torch cannot read the exported programs of a new one, nor
trace custom operators. Of the formats that an old torch reads, Python source depends least on versions: TorchScript
records versions of its operators, and its archives record the version of their format. People can read the function
too, and it runs here as well, so it can be verified against the model without its compiler or its device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..interface import Weights
from ..signature import Signature
from . import unrolled
from .source_module import SourceModule

OPERATORS: Mapping[str, Callable[..., Any]] = {"lstm": unrolled.lstm, "rnn": unrolled.rnn}
"""Functions that the source calls beside torch: recurrences, which a compiler unrolls while it traces."""


@dataclass(frozen=True)
class SourceProgram:
    """A program as Python source, for exactly the sizes of its signature."""

    source: str
    """Definition of `forward(tensors, *inputs)`."""
    names: tuple[str, ...]
    """Tensors that it takes, by their names in the model's state dict and among its constants."""
    extra_tensors: dict[str, torch.Tensor]
    """Tensors that neither the state dict nor the constants hold: export at fixed sizes created them."""
    signature: Signature

    def module(self, weights: Weights) -> SourceModule:
        """Build a module over these weights, shared and not copied."""
        return build_source_module(self.source, {**weights, **self.extra_tensors}, self.names)

    @property
    def examples(self) -> tuple[torch.Tensor, ...]:
        """Inputs of the right sizes and dtypes: ones, which are valid lengths and ids as well."""
        return self.signature.example_inputs()


def parameter_name(index: int) -> str:
    """Return the name of a tensor in a module: unlike names in state dicts, it has no dots.

    >>> parameter_name(3)
    'w3'
    """
    return f"w{index}"


def build_source_module(source: str, weights: Weights, names: tuple[str, ...]) -> SourceModule:
    """Build the module of a source over the weights of these names, shared and not copied."""
    return SourceModule(source, {parameter_name(i): weights[name].detach() for i, name in enumerate(names)}, OPERATORS)

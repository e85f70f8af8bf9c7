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

from .. import row_orders
from ..interface import Weights
from ..signature import Signature
from . import unrolled
from .source_module import SourceModule

OPERATORS: Mapping[str, Callable[..., Any]] = {
    "lstm": unrolled.lstm,
    "rnn": unrolled.rnn,
    "positions": row_orders.positions,
}
"""Functions that the source calls beside torch.

A compiler unrolls recurrences while it traces. The order of each row is for the CPU alone.
"""


@dataclass(frozen=True)
class SourceProgram:
    """A program as Python source, for exactly the sizes of its signature."""

    source: str
    """Definition of `program(tensors)`, which returns a function of the inputs."""
    names: tuple[str, ...]
    """Tensors that it takes, by their names in the model's state dict and among its constants."""
    extra_tensors: dict[str, torch.Tensor]
    """Tensors that neither the state dict nor the constants hold: export at fixed sizes created them."""
    signature: Signature

    def tensors(self, weights: Weights) -> dict[str, torch.Tensor]:
        """Return the tensors in their order, shared and not copied. The names in a module have no dots."""
        held = {**weights, **self.extra_tensors}
        return {f"w{index}": held[name].detach() for index, name in enumerate(self.names)}

    def module(self, weights: Weights) -> SourceModule:
        """Build a module over these weights, shared and not copied."""
        return SourceModule(self.source, self.tensors(weights), OPERATORS)

"""What lowering hands to the rest of packaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ...bucketing.spec import TensorSpec


@dataclass(frozen=True)
class Program:
    """The model as one function over padded tensors.

    `exported` takes the declared inputs in order, then lengths[B] int64 where `takes_lengths`, and returns a flat tuple
    of outputs. Batch and time are symbolic, recurrences are the abstract operators of `backends.masked`. Its parameters
    and persistent buffers are named as in the model's state dict; `constants` are the tensors besides, by the name the
    exported program gives them.
    """

    exported: torch.export.ExportedProgram
    inputs: tuple[TensorSpec, ...]
    takes_lengths: bool
    outputs: tuple[TensorSpec, ...]
    constants: dict[str, torch.Tensor]
    padding: Literal["masked", "exact_lengths"]
    """Whether requests may be padded to a bucket, or only bucket lengths themselves are served."""
    padding_reason: str
    """Why, for people: what was proved, or which line of the model padding would reach."""

"""Values of a family of calls."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Stacked:
    """Members of a family, or their own arguments: [members, ...]."""

    tensor: torch.Tensor


@dataclass(frozen=True)
class LastOnly:
    """State of a recurrence that is known after its last member only."""

    tensor: torch.Tensor

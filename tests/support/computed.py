"""A model that is one function of its input."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Computed(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)

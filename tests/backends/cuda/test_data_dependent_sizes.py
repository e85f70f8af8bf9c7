"""Sizes that depend on data cannot be captured: packaging refuses them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from graph_programs import compiled
from recurrent import exported, ragged_batch
from torch import nn

from torchserve_neuron_lstm.backends.interface import CompileError


class Selecting(nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return x[x > 0].sum() + lengths


class WrittenByMask(nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[x[:, :, 0] > 0] = torch.ones(5)
        return y + lengths[:, None, None]


class Places(nn.Module):
    """A model that counts places, by a composite operator without a tag."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0)[0].sum() + lengths


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Selecting(), r"index\.Tensor selects by a mask"),
        (WrittenByMask(), r"index_put_\.default selects by a mask"),
        (Places(), r"where\.default returns a size that depends on data"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_size_that_depends_on_data_is_refused_when_packaging(model: nn.Module, reason: str, tmp_path: Path) -> None:
    """The message names the call, and what to do."""
    program = exported(model, *ragged_batch(0.0))
    with pytest.raises(CompileError, match=rf"{reason}.*partitioner_config"):
        compiled(program, tmp_path / "program")

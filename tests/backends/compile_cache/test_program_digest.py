"""Digest of a program: equal where the same is compiled, different otherwise."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from torchserve_neuron_lstm.backends.compile_cache.program_digest import program_digest


class Small(nn.Module):
    """A linear layer and a constant of the model's code."""

    def __init__(self, seed: int = 0, width: int = 3, constant: float = 2.0, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(3, width, bias=bias)
        self.other = nn.Linear(3, width, bias=bias)
        self.constant = constant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sums: torch.Tensor = self.layer(x) + self.other(x) * torch.tensor([self.constant])
        return sums


def digest(model: nn.Module, rows: int | None = None) -> str | None:
    """The digest of a model, exported for any number of rows or for a fixed one."""
    dynamic = None if rows else {"x": {0: torch.export.Dim("rows", min=1)}}
    return program_digest(torch.export.export(model, (torch.zeros(rows or 5, 3),), dynamic_shapes=dynamic))


def test_weights_of_other_values_compile_to_the_same() -> None:
    """New weights for a model are no reason to compile."""
    assert digest(Small(0)) == digest(Small(1)) is not None


def _shared() -> nn.Module:
    model = Small()
    model.other.weight = model.layer.weight
    return model


def _frozen() -> nn.Module:
    return Small().requires_grad_(False)


@pytest.mark.parametrize(
    "other",
    [
        lambda: Small(width=4),
        lambda: Small(constant=3.0),
        lambda: Small(bias=False),
        _shared,
        _frozen,
        lambda: Small().double().float().to(torch.float64).to(torch.bfloat16),
    ],
    ids=["size", "constant", "weights", "shared memory", "gradient", "dtype"],
)
def test_whatever_else_differs_has_another_digest(other: Callable[[], nn.Module]) -> None:
    """The graph, the values of constants, and names, types and sharing of weights."""
    model = other()
    x = torch.zeros(5, 3, dtype=next(model.parameters()).dtype)
    exported = torch.export.export(model, (x,), dynamic_shapes={"x": {0: torch.export.Dim("rows", min=1)}})

    assert program_digest(exported) != digest(Small())


def test_other_sizes_have_another_digest() -> None:
    """A program for fixed sizes differs from one for every size."""
    assert len({digest(Small()), digest(Small(), rows=5), digest(Small(), rows=6)}) == 3


def test_another_process_finds_the_same_digest() -> None:
    """No address and no hash of a process is in it."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_program_digest as t; print(t.digest(t.Small(7)))"
    here = str(Path(__file__).parent)
    found = subprocess.run([sys.executable, "-c", code, here], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == digest(Small())

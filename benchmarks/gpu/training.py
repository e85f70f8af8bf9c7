"""Forward and backward of a packed model on a GPU, as it is written and lowered."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from torchserve_neuron_lstm import lower

from .cases import Case, Packed

TRAINED = Case("512 sequences of 1 to 256 timesteps", tuple(1 + index % 256 for index in range(512)), 64, 64, 1)


def training_calls(device: torch.device, case: Case = TRAINED) -> dict[str, Callable[[], object]]:
    """Return one step of each contestant: the outputs, and the gradients of their sum."""
    model = Packed(case.layer()).to(device).train()
    x, lengths = case.inputs()
    x = x.to(device)

    def step(run: nn.Module) -> Callable[[], object]:
        def call() -> None:
            model.zero_grad()
            y, h_n = run(x, lengths)
            (y.sum() + h_n.sum()).backward()

        return call

    return {"packed": step(model), "lowered": step(lower(model))}

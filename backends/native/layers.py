"""Layers that the kernel computes, in the place of operators of an exported program."""

from __future__ import annotations

import torch

from .library import LayerStack, LinearLayer


class NativeRecurrence(torch.nn.Module):
    """A recurrent operator with its weights: what `masked.py` defines, of x, lengths and states alone."""

    def __init__(self, stack: LayerStack, *, time_major: bool) -> None:
        super().__init__()
        self.stack, self.time_major = stack, time_major

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(y, h_n, c_n), or (y, h_n) for cells without a cell state."""
        if lengths is None:
            lengths = torch.full((x.shape[0],), x.shape[1])
        lengths = lengths.contiguous()
        begins = [state.contiguous() for state in states]
        x = x if x.stride(2) == 1 else x.contiguous()
        if self.stack.cell == "lstm":
            return self.stack.run(x, lengths, begins[0], begins[1], time_major=self.time_major)
        return self.stack.run(x, lengths, begins[0], None, time_major=self.time_major)[:2]


class NativeLinear(torch.nn.Module):
    """`aten.linear` of a float32 x of any rank."""

    def __init__(self, product: LinearLayer) -> None:
        super().__init__()
        self.product = product

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x[..., K] -> y[..., O]."""
        flat = x.reshape(-1, 1, x.shape[-1]).contiguous()
        return self.product.run(flat, None).view(*x.shape[:-1], -1)


class NativeSequenceLinear(torch.nn.Module):
    """`aten.linear` of what a recurrence answers at every timestep, or of that with time in front.

    Behind a row's last timestep a recurrence answers zeros, of which a linear layer makes its bias.
    """

    def __init__(self, product: LinearLayer, *, time_major: bool) -> None:
        super().__init__()
        self.product, self.time_major = product, time_major

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """x[B, T, K] -> y[B, T, O], or both with B and T in the other order."""
        lengths = lengths.contiguous()
        if self.time_major:
            return self.product.run(x.transpose(0, 1), lengths, time_major=True).transpose(0, 1)
        return self.product.run(x, lengths)

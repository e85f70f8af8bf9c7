"""Modules that replace operators of an exported program by calls of the recurrent library."""

from __future__ import annotations

import torch

from .library import LayerStack, LinearLayer


class NativeRecurrence(torch.nn.Module):
    """A recurrent operator of `masked.py` with its weights: a function of x, lengths and states."""

    def __init__(self, stack: LayerStack, *, time_major: bool) -> None:
        super().__init__()
        self.stack, self.time_major = stack, time_major

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return (y, h_n, c_n), or (y, h_n) for cells without a cell state."""
        if lengths is None:
            lengths = torch.full((x.shape[0],), x.shape[1])
        lengths = lengths.contiguous()
        initial = [state.contiguous() for state in states]
        x = x if x.stride(2) == 1 else x.contiguous()
        if self.stack.cell == "lstm":
            return self.stack.run(x, lengths, initial[0], initial[1], time_major=self.time_major)
        return self.stack.run(x, lengths, initial[0], None, time_major=self.time_major)[:2]


class NativeLinear(torch.nn.Module):
    """`aten.linear` of a float32 x of any rank."""

    def __init__(self, linear: LinearLayer) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute y[..., O] from x[..., K]."""
        flat = x.reshape(-1, 1, x.shape[-1]).contiguous()
        return self.linear.run(flat, None).view(*x.shape[:-1], -1)


class NativeSequenceLinear(torch.nn.Module):
    """`aten.linear` of a recurrence's outputs at every timestep, batch-first or time-major.

    After a row's last timestep these outputs are zeros, for which a linear layer returns its bias.
    """

    def __init__(self, linear: LinearLayer, *, time_major: bool) -> None:
        super().__init__()
        self.linear, self.time_major = linear, time_major

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Compute y[B, T, O] from x[B, T, K], or both with B and T exchanged."""
        lengths = lengths.contiguous()
        if self.time_major:
            return self.linear.run(x.transpose(0, 1), lengths, time_major=True).transpose(0, 1)
        return self.linear.run(x, lengths)


class NativeConvolution(torch.nn.Module):
    """`aten.conv1d` of a float32 x, without groups and dilation.

    In memory, channels come last: so a window of timesteps is one vector of x, and windows overlap.
    """

    def __init__(self, linear: LinearLayer, kernel: int, stride: int, padding: int) -> None:
        """Create the layer of a linear layer with the weights of `as_linear`; sizes in timesteps."""
        super().__init__()
        self.linear = linear
        self.kernel, self.stride, self.padding = kernel, stride, padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute y[N, O, T'] from x[N, C, T]."""
        batch, channels, time = x.shape
        padded = x.new_zeros(batch, time + 2 * self.padding, channels)
        padded[:, self.padding : self.padding + time] = x.transpose(1, 2)
        steps = (padded.shape[1] - self.kernel) // self.stride + 1
        windows = padded.as_strided(
            (batch, steps, self.kernel * channels), (padded.stride(0), self.stride * channels, 1)
        )
        return self.linear.run(windows, None).transpose(1, 2)


def as_linear(weight: torch.Tensor) -> torch.Tensor:
    """Return the weights [O, K*C] over a window of K timesteps for those of a convolution, [O, C, K].

    >>> as_linear(torch.arange(4.0).view(1, 2, 2))
    tensor([[0., 2., 1., 3.]])
    """
    return weight.transpose(1, 2).flatten(1).contiguous()

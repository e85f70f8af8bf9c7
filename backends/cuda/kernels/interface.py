"""Interface of a kernel of recurrent layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Number of gates of each cell."""


class KernelError(RuntimeError):
    """CUDA refused to compile or to launch a kernel."""


@dataclass(frozen=True)
class LayerCall:
    """Operands of one layer, for B rows of T timesteps, D directions and H hidden units.

    All but the lengths are float32, and all are contiguous. Rows with no timestep leave `h_n` and `c_n` as they are,
    and padding leaves `y` as it is.
    """

    cell: str
    """A key of `GATES`; G is the number of its gates."""
    gates: Tensor
    """[B, T, D, G * H]: the products of the inputs, with all biases but `b_hn`."""
    w_hh: Tensor
    """[D, G * H, H]."""
    b_hn: Tensor | None
    """[D, H]: the recurrent bias of a GRU's candidate; None for the other cells."""
    lengths: Tensor | None
    """int64[B]; None: all rows have T timesteps."""
    h_0: Tensor
    """[D, B, H]."""
    c_0: Tensor | None
    """[D, B, H] of an LSTM."""
    y: Tensor
    """Result [B, T, D * H]."""
    h_n: Tensor
    """Result [D, B, H]."""
    c_n: Tensor | None
    """Result [D, B, H] of an LSTM."""


class RecurrenceKernel(Protocol):
    """A kernel that computes each row to its own end, in both directions."""

    def computes(self, hidden: int) -> bool:
        """Whether layers of so many hidden units can be computed."""

    def enqueue(self, call: LayerCall) -> None:
        """Enqueue a layer on the current stream. Raises `KernelError`: CUDA refused it."""

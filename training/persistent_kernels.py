"""Layers that cuDNN runs in persistent kernels, in which the recurrent weights stay on the chip.

They take padded data of rows of one length, and are about ten times as fast as the standard ones. torch chooses them
as `use_rnn_persist_small_h` in its file aten/src/ATen/native/cudnn/RNN.cpp says.
"""

from __future__ import annotations

from typing import Literal

CellKind = Literal["lstm", "gru", "rnn"]

_WIDEST = {"lstm": 192, "gru": 192, "rnn": 384}
_WIDEST_BACKWARD = {"lstm": 128, "gru": 128, "rnn": 256}


def has_persistent_kernel(cell: CellKind, hidden: int, *, gradients: bool, projected: bool) -> bool:
    """Return whether padded data of so many hidden units is computed persistently.

    With `gradients`, in both passes.

    >>> [has_persistent_kernel("lstm", 160, gradients=both, projected=False) for both in (False, True)]
    [True, False]
    """
    return not projected and hidden <= (_WIDEST_BACKWARD if gradients else _WIDEST)[cell]

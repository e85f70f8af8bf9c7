"""The recurrent layers of torch on packed data, computed as padded data where that is sooner.

`lstm`, `gru`, `rnn_tanh` and `rnn_relu` stand in for what `nn.LSTM`, `nn.GRU` and `nn.RNN` call with packed data, and
take and give what torch's own do. On a CPU torch goes through packed data step by step, and has fused layers for padded
data. So the batch is cut in time into stretches, each over the rows that are alive as it begins, which hand their
states on. What comes out behind the end of a row is dropped. Elsewhere torch's own layers take packed data as it is:
cuDNN computes no padding.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import _VF, Tensor
from torch.nn import functional

from .packed_layout import PackedLayout, TimeSegment, call_overhead, max_segment, packed_layout, time_segments
from .packing import gather, scatter, scatter_with_mask, use_torch_kernel

# Opens or closes a gate for good: far beyond what weights add up to, yet finite in half precision.
_SHUT = 1e4


class _Cell(NamedTuple):
    """A kind of recurrence."""

    call: Callable[..., tuple[Tensor, ...]]
    """torch's function for padded and packed data."""
    remembers: bool = False
    """Whether it has a state that its outputs do not show."""


_LSTM = _Cell(_VF.lstm, remembers=True)
_GRU = _Cell(_VF.gru)
_RNN_TANH = _Cell(_VF.rnn_tanh)
_RNN_RELU = _Cell(_VF.rnn_relu)


def lstm(*args: Any) -> tuple[Tensor, ...]:
    """`torch._VF.lstm`."""
    if not _is_supported(args):
        return _LSTM.call(*args)
    data, batch_sizes, states, weights, *rest = args
    if not torch.is_autocast_enabled("cpu"):
        return _stack(_LSTM, data, batch_sizes, states, weights, *rest)
    with torch.autocast("cpu", enabled=False):
        # The fused layer knows no gradients in some dtypes of autocast, and is fast enough in float32.
        data, *states = (tensor.float() for tensor in (data, *states))
        answers = _stack(_LSTM, data, batch_sizes, states, [weight.float() for weight in weights], *rest)
    return tuple(answer.to(dtype) for answer, dtype in zip(answers, _autocast_dtypes(*args[2]), strict=True))


def gru(*args: Any) -> tuple[Tensor, ...]:
    """`torch._VF.gru`."""
    return _rnn(_GRU, args)


def rnn_tanh(*args: Any) -> tuple[Tensor, ...]:
    """`torch._VF.rnn_tanh`."""
    return _rnn(_RNN_TANH, args)


def rnn_relu(*args: Any) -> tuple[Tensor, ...]:
    """`torch._VF.rnn_relu`."""
    return _rnn(_RNN_RELU, args)


def _rnn(cell: _Cell, args: Sequence[Any]) -> tuple[Tensor, ...]:
    if not _is_supported(args):
        return cell.call(*args)
    data, batch_sizes, state, *rest = args
    return _stack(cell, data, batch_sizes, [state], *rest)


def _autocast_dtypes(h_0: Tensor, c_0: Tensor) -> tuple[torch.dtype, torch.dtype, torch.dtype]:
    """Of y, h_n and c_n of a packed LSTM: gates are computed in autocast's dtype, the cell in the wider of both."""
    narrow = torch.get_autocast_dtype("cpu")
    wide = torch.promote_types(narrow, c_0.dtype)
    return (narrow, narrow, wide) if _is_projected([h_0, c_0]) else (wide, wide, wide)


def _is_supported(args: Sequence[Any]) -> bool:
    """Whether a layer is called with packed data on a CPU that torch is slow with; what is wrong with it torch says."""
    if len(args) != 9 or isinstance(args[3], bool):  # padded: x, states, weights, bias, ...
        return False
    data, batch_sizes, states = args[:3]
    if data.device.type != "cpu" or data.dim() != 2 or not len(batch_sizes):
        return False
    steps = packed_layout(batch_sizes)
    if use_torch_kernel(steps.uniform):
        return False
    descending = all(one >= other for one, other in zip(steps.active, [*steps.active[1:], 1], strict=True))
    states = [states] if isinstance(states, Tensor) else states
    return descending and steps.count == len(data) and all(state.shape[1] == steps.rows for state in states)


def _stack(
    cell: _Cell,
    data: Tensor,
    batch_sizes: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, ...]:
    """All layers and directions: packed y[N, D*H], and the states [L*D, B, H] after each row's own last step."""
    directions = 2 if bidirectional else 1
    steps = packed_layout(batch_sizes)
    size = len(weights) // (layers * directions)
    finals: list[Sequence[Tensor]] = []
    for index in range(layers):
        outputs = []
        for number in range(index * directions, (index + 1) * directions):
            own = weights[number * size : (number + 1) * size]
            direction = _backward if number % directions else _forward
            y, final = direction(cell, data, steps, [state[number] for state in states], own, bias)
            outputs.append(y)
            finals.append(final)
        data = torch.cat(outputs, 1) if bidirectional else outputs[0]
        if dropout and index < layers - 1:
            data = functional.dropout(data, dropout, train)
    return data, *(torch.stack(list(kind)) for kind in zip(*finals, strict=True))


def _backward(
    cell: _Cell, data: Tensor, steps: PackedLayout, states: Sequence[Tensor], weights: Sequence[Tensor], bias: bool
) -> tuple[Tensor, Sequence[Tensor]]:
    """Each row back to front within its own length, so that it still begins at step 0 with the given state."""
    mirror = steps.reversal(data.device)
    y, final = _forward(cell, gather(data, mirror), steps, states, weights, bias)
    return gather(y, mirror), final


def _forward(
    cell: _Cell, data: Tensor, steps: PackedLayout, states: Sequence[Tensor], weights: Sequence[Tensor], bias: bool
) -> tuple[Tensor, Sequence[Tensor]]:
    """One layer in one direction: packed y[N, H], the states [B, H] after each row's own last step."""
    cuts = _cuts(steps, weights)
    closing = weights if steps.uniform or not cell.remembers else _with_closing_column(weights)
    outputs, ended = [], []
    for cut, part in zip(cuts, data.split([cut.real_timesteps for cut in cuts]), strict=True):
        if cut.full:
            y, after = _call(cell, part.unflatten(0, (cut.timesteps, cut.rows)), states, weights, bias)
        else:
            y, after = _ragged(cell, part, cut, steps, states, closing, bias)
        outputs.append(y)
        ended.append([state[cut.survivors :] for state in after])
        states = [state[: cut.survivors] for state in after]
    # Who ends last comes first.
    return _joined(outputs), [torch.cat(kind[::-1]) for kind in zip(*ended, strict=True)]


def _cuts(steps: PackedLayout, weights: Sequence[Tensor]) -> list[TimeSegment]:
    w_ih, w_hh, *_ = weights
    # Without gradients nothing is kept.
    limit = max_segment(len(w_hh)) if torch.is_grad_enabled() else steps.rows * steps.longest
    return list(time_segments(steps.active, call_overhead(w_ih.numel() + w_hh.numel()), limit))


def _joined(outputs: Sequence[Tensor]) -> Tensor:
    """All outputs in a row, and a copy where a layer keeps its own for the gradients: packed data may be written to."""
    return outputs[0] if len(outputs) == 1 and not outputs[0].requires_grad else torch.cat(list(outputs))


def _ragged(
    cell: _Cell,
    part: Tensor,
    cut: TimeSegment,
    steps: PackedLayout,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: bool,
) -> tuple[Tensor, Sequence[Tensor]]:
    """A stretch in which rows end: packed y, and the states [rows, H] after each row's last step in it."""
    places = steps.segment_indices(cut, part.device)
    x = (scatter_with_mask if cell.remembers else scatter)(part, places, cut.timesteps * cut.rows)
    y, (h, *others) = _call(cell, x.unflatten(0, (cut.timesteps, cut.rows)), states, weights, bias)
    last = gather(y, steps.last_indices(cut, part.device))
    return gather(y, places), [torch.cat([h[: cut.survivors], last]), *others]


def _call(
    cell: _Cell, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], bias: bool
) -> tuple[Tensor, Sequence[Tensor]]:
    """The padded layer of torch on x[T, B, F]: y[T*B, H], and the states [B, H] after step T."""
    given = [state[None] for state in states]
    with _quiet_about_projections() if _is_projected(states) else contextlib.nullcontext():
        y, *after = cell.call(x, given if cell.remembers else given[0], weights, bias, 1, 0.0, True, False, False)
    return y.flatten(0, 1), [state[0] for state in after]


def _is_projected(states: Sequence[Tensor]) -> bool:
    """Whether the states (h, c) are those of an LSTM with a `proj_size`."""
    return states[0].shape[-1] != states[-1].shape[-1]


@contextlib.contextmanager
def _quiet_about_projections() -> Iterator[None]:
    """Torch says that it has no fused layer for them. It has none for packed data either, and does not say so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")
        yield


def _with_closing_column(weights: Sequence[Tensor]) -> list[Tensor]:
    """Weights for an input column that is 1 on padding: it shuts the input gate and opens the forget gate.

    A padded step then keeps the cell state exactly. The gates stand as i, f, g, o.
    """
    w_ih, *others = weights
    hidden = len(w_ih) // 4
    column = w_ih.new_zeros(4 * hidden, 1)
    column[:hidden], column[hidden : 2 * hidden] = -_SHUT, _SHUT
    return [torch.cat([w_ih, column], 1), *others]

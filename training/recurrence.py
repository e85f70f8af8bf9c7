"""Recurrent layers of torch on packed data, computed as padded data if that is faster.

`lstm`, `gru`, `rnn_tanh` and `rnn_relu` replace the functions that `nn.LSTM`, `nn.GRU` and `nn.RNN` call with packed
data, with the same arguments and results. On a CPU torch computes packed data step by step, and has fused layers for
padded data. On a GPU cuDNN's persistent kernels take padded data only. So the batch is cut into time segments, each
over the rows active at its start; the states go from segment to segment. Outputs beyond the end of a row are dropped.
A layer of a GPU that has no persistent kernel goes to torch with its packed data: cuDNN computes no padding.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import _VF, Tensor
from torch.nn import functional

from .packed_layout import PackedLayout, TimeSegment, copied_from_host, packed_layout, time_segments
from .packing import gather, scatter, scatter_with_mask, use_torch_kernel

Tensors = Sequence[Tensor]


class _Cell(NamedTuple):
    call: Callable[..., tuple[Tensor, ...]]
    """Function of torch for padded and packed data."""
    widest: tuple[int, int]
    """Most hidden units for which cuDNN has persistent kernels, without and with gradients."""
    has_cell_state: bool = False
    """Whether it has a state besides its outputs."""
    is_masked: bool = False
    """Whether the weights need a column for padding, as a state is kept there, or unbounded outputs could overflow."""


_LSTM = _Cell(_VF.lstm, (192, 128), has_cell_state=True, is_masked=True)


def lstm(*args: Any) -> tuple[Tensor, ...]:
    """Compute `torch._VF.lstm`."""
    if not _is_supported(_LSTM, args):
        return _LSTM.call(*args)
    data, batch_sizes, states, weights, *rest = args
    # Autocast leaves float64 as it is.
    if data.device.type != "cpu" or not torch.is_autocast_enabled("cpu") or data.dtype == torch.float64:
        return _stack(_LSTM, data, batch_sizes, states, weights, *rest)
    with torch.autocast("cpu", enabled=False):
        # The fused layer has no gradients in some dtypes of autocast, and is fast enough in float32.
        data, *states = (tensor.float() for tensor in (data, *states))
        results = _stack(_LSTM, data, batch_sizes, states, [weight.float() for weight in weights], *rest)
    return tuple(result.to(dtype) for result, dtype in zip(results, _autocast_dtypes(*args[2]), strict=True))


def _rnn(cell: _Cell, *args: Any) -> tuple[Tensor, ...]:
    if not _is_supported(cell, args):
        return cell.call(*args)
    data, batch_sizes, state, *rest = args
    return _stack(cell, data, batch_sizes, [state], *rest)


gru = functools.partial(_rnn, _Cell(_VF.gru, (192, 128)))
rnn_tanh = functools.partial(_rnn, _Cell(_VF.rnn_tanh, (384, 256)))
rnn_relu = functools.partial(_rnn, _Cell(_VF.rnn_relu, (384, 256), is_masked=True))


def _autocast_dtypes(h_0: Tensor, c_0: Tensor) -> tuple[torch.dtype, torch.dtype, torch.dtype]:
    """The dtypes of y, h_n and c_n: gates are computed in autocast's dtype, the cell in the wider of both."""
    narrow = torch.get_autocast_dtype("cpu")
    wide = torch.promote_types(narrow, c_0.dtype)
    return (narrow, narrow, wide) if _is_projected([h_0, c_0]) else (wide, wide, wide)


def _is_supported(cell: _Cell, args: Sequence[Any]) -> bool:
    """Whether a layer is called with valid packed data for which torch is slow. Torch reports invalid data."""
    if len(args) != 9 or isinstance(args[3], bool):  # padded: x, states, weights, bias, ...
        return False
    data, batch_sizes, states, weights = args[:4]
    if data.dim() != 2 or not len(batch_sizes):
        return False
    layout, states = packed_layout(batch_sizes), [states] if isinstance(states, Tensor) else states
    if not _torch_is_slow(cell, data, layout, states, weights):
        return False
    descending = all(one >= other for one, other in zip(layout.active, [*layout.active[1:], 1], strict=True))
    return descending and layout.count == len(data) and all(state.shape[1] == layout.rows for state in states)


def _torch_is_slow(cell: _Cell, data: Tensor, layout: PackedLayout, states: Tensors, weights: Tensors) -> bool:
    """Whether padded data is computed faster than packed data."""
    if data.device.type == "cpu":
        return not use_torch_kernel(layout.uniform)
    if data.device.type != "cuda" or not torch.cudnn_is_acceptable(data) or torch.is_autocast_enabled("cuda"):
        return False
    if data.dtype == torch.float64 or _is_projected(states):
        return False
    return bool(weights[1].shape[1] <= cell.widest[torch.is_grad_enabled()])


def _stack(
    cell: _Cell,
    data: Tensor,
    batch_sizes: Tensor,
    states: Tensors,
    weights: Tensors,
    bias: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, ...]:
    """Compute all layers and directions: packed y[N, D*H], the states [L*D, B, H] after each row's own last step."""
    directions = 2 if bidirectional else 1
    layout = packed_layout(batch_sizes)
    size = len(weights) // (layers * directions)
    finals: list[Tensors] = []
    for index in range(layers):
        outputs = []
        for number in range(index * directions, (index + 1) * directions):
            own = weights[number * size : (number + 1) * size]
            direction = _backward if number % directions else _forward
            y, final = direction(cell, data, layout, [state[number] for state in states], own, bias)
            outputs.append(y)
            finals.append(final)
        data = torch.cat(outputs, 1) if bidirectional else outputs[0]
        if dropout and index < layers - 1:
            data = functional.dropout(data, dropout, train)
    return data, *(_stacked(kind) for kind in zip(*finals, strict=True))


def _stacked(states: Tensors) -> Tensor:
    """Stack the states [B, H] of all layers and directions."""
    # Callers may write to them, but not to tensors that a layer saves: cuDNN saves its outputs, not its last states.
    return states[0][None] if len(states) == 1 and states[0].is_cuda else torch.stack(list(states))


def _backward(
    cell: _Cell, data: Tensor, layout: PackedLayout, states: Tensors, weights: Tensors, bias: bool
) -> tuple[Tensor, Tensors]:
    """Run each row reversed within its own length, so that it still starts at step 0 with the given state."""
    reversal = layout.reversal(data.device)
    y, final = _forward(cell, gather(data, reversal), layout, states, weights, bias)
    return gather(y, reversal), final


def _forward(
    cell: _Cell, data: Tensor, layout: PackedLayout, states: Tensors, weights: Tensors, bias: bool
) -> tuple[Tensor, Tensors]:
    """Compute one layer in one direction: packed y[N, H], the states [B, H] after each row's own last step."""
    segments = _segments(layout, weights)
    masking = weights if layout.uniform or not cell.is_masked else _with_mask_column(cell, weights)
    outputs, ended = [], []
    for segment, part in zip(segments, data.split([one.real_timesteps for one in segments]), strict=True):
        if segment.full:
            y, after = _call(cell, part.unflatten(0, (segment.timesteps, segment.rows)), states, weights, bias)
        else:
            y, after = _ragged(cell, part, segment, layout, states, masking, bias)
        outputs.append(y)
        ended.append([state[segment.survivors :] for state in after])
        states = [state[: segment.survivors] for state in after]
    # Callers may write to outputs that the layer does not save for its gradients: those of a ragged segment are a copy.
    is_saved = segments[0].full and outputs[0].requires_grad
    y = outputs[0] if len(outputs) == 1 and not is_saved else torch.cat(outputs)
    # Rows are sorted longest first, so those of the last segment come first.
    return y, [torch.cat(kind[::-1]) if kind[1:] else kind[0] for kind in zip(*ended, strict=True)]


def _segments(layout: PackedLayout, weights: Tensors) -> list[TimeSegment]:
    w_ih, w_hh, *_ = weights
    whole, size = layout.rows * layout.longest, w_ih.numel() + w_hh.numel()
    if w_hh.is_cuda:
        return list(time_segments(layout.active, gpu_call_overhead(size, layout.count), whole))
    # Without gradients nothing is saved for the backward pass.
    limit = max_segment(len(w_hh)) if torch.is_grad_enabled() else whole
    return list(time_segments(layout.active, call_overhead(size), limit))


def _ragged(
    cell: _Cell, part: Tensor, segment: TimeSegment, layout: PackedLayout, states: Tensors, weights: Tensors, bias: bool
) -> tuple[Tensor, Tensors]:
    """Compute a segment in which rows end: packed y, the states [rows, H] after each row's last step in it."""
    indices, ends = layout.segment_indices(segment, part.device)
    size = segment.timesteps * segment.rows
    if cell.is_masked:
        x = scatter_with_mask(part, indices, size, weights[0].shape[1] - part.shape[1])
    else:
        x = scatter(part, indices, size)
    y, (h, *others) = _call(cell, x.unflatten(0, (segment.timesteps, segment.rows)), states, weights, bias)
    last = gather(y, ends)
    return gather(y, indices), [torch.cat([h[: segment.survivors], last]) if segment.survivors else last, *others]


def _call(cell: _Cell, x: Tensor, states: Tensors, weights: Tensors, bias: bool) -> tuple[Tensor, Tensors]:
    """Call the padded layer of torch on x[T, B, F]: y[T*B, H], the states [B, H] after step T."""
    given = [state[None].contiguous() for state in states]
    weights = _in_one_block(weights) if x.is_cuda else weights
    saves = torch.is_grad_enabled() or not x.is_cuda  # only cuDNN is faster without saving
    with _quiet_about_projections() if _is_projected(states) else contextlib.nullcontext():
        state = given if cell.has_cell_state else given[0]
        y, *after = cell.call(x, state, weights, bias, 1, 0.0, saves, False, False)
    return y.flatten(0, 1), [state[0] for state in after]


def _is_projected(states: Tensors) -> bool:
    """Whether the states (h, c) are those of an LSTM with a `proj_size`."""
    return states[0].shape[-1] != states[-1].shape[-1]


@contextlib.contextmanager
def _quiet_about_projections() -> Iterator[None]:
    """Silence the warning that torch has no fused layer for projections. It has none for packed data either."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")
        yield


def _with_mask_column(cell: _Cell, weights: Tensors) -> list[Tensor]:
    """Weights for an input column that is 1 on padding.

    In an LSTM it closes the input gate and opens the forget gate. A padded step then keeps the cell state exactly. The
    order of the gates is i, f, g, o. In an RNN with ReLU it makes the state of a padded step 0. On a GPU further
    columns, without weights, make the width a multiple of 4, so that each row of the matrix is aligned to 16 bytes.
    """
    w_ih, *others = weights
    columns = w_ih.new_zeros(len(w_ih), 4 - w_ih.shape[1] % 4 if w_ih.is_cuda else 1, device="cpu")
    beyond = _far_beyond_sums(w_ih)
    if cell.has_cell_state:
        hidden = len(w_ih) // 4
        columns[:hidden, 0].fill_(-beyond)
        columns[hidden : 2 * hidden, 0].fill_(beyond)
    else:
        columns[:, 0].fill_(-beyond)
    return [torch.cat([w_ih, copied_from_host(columns, w_ih.device)], 1), *others]


def _far_beyond_sums(weight: Tensor) -> float:
    """Half of the largest number of the dtype in which a layer computes: finite, so that 0 times it is 0."""
    kind = weight.device.type
    computed = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    return min(torch.finfo(dtype).max for dtype in (computed, weight.dtype)) / 2


def _in_one_block(weights: Tensors) -> Tensors:
    """Weights of a layer in one block of memory, as cuDNN reads them: torch copies others there, at more cost.

    The block has room for both biases, also in a layer without them.
    """
    first, sizes = weights[0], [weight.numel() for weight in weights]
    room = 2 * len(weights[1]) if len(weights) == 2 else 0
    if first.untyped_storage().nbytes() == (sum(sizes) + room) * first.element_size():
        return weights
    flat = [*(weight.reshape(-1) for weight in weights), *([first.new_zeros(room)] if room else [])]
    pieces = torch.cat(flat).split([*sizes, *([room] if room else [])])
    return [piece.view(weight.shape) for piece, weight in zip(pieces, weights, strict=False)]


_LEAST_PADDING = 2**14


def call_overhead(weights: int) -> int:
    """Return the overhead of a call on a CPU, in timesteps of one row, for a layer with so many weights.

    >>> call_overhead(4 * 32 * (16 + 32)), call_overhead(4 * 256 * (128 + 256))
    (1152, 144)
    """
    return 128 + 3 * 2**21 // weights


def gpu_call_overhead(weights: int, real: int) -> int:
    """Return the overhead of a call on a GPU, for a batch with so many real timesteps.

    A GPU computes a timestep of all rows at once, so a row less saves little, and in small layers nothing. But padding
    takes memory, which is kept for the backward pass: one call has no more of it than the batch has real timesteps.

    >>> gpu_call_overhead(4 * 128 * (128 + 128), 10**6), gpu_call_overhead(4 * 32 * (16 + 32), 10**5)
    (12288, 100000)
    """
    return min(3 * 2**29 // weights, max(real, _LEAST_PADDING))


def max_segment(gates: int) -> int:
    """Return the most timesteps of rows in one call on a CPU, for a layer with so many gates.

    An LSTM has 4H. The values saved for the backward pass, about 4 numbers for each gate, then stay below 32 MiB.
    Beyond that the C library requests new memory from the system each time, which takes as long as the computation.

    >>> max_segment(4 * 32), max_segment(4 * 256)
    (8192, 1024)
    """
    return max(1, 2**20 // gates)

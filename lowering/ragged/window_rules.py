"""Rules of convolutions and pooling: beyond a row's end, a window reads what a request alone has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch

from ..exported_graph import each_dim
from .indexing_rules import taken
from .reduction_rules import mean_of_rows
from .shape_rules import unraveled
from .sizes import is_ragged
from .value import Batch, Call, NoRule, Results, Value, reject_split_blocks


def _with_own_ends(batch: Batch, value: Value, dims: Iterable[int]) -> Value:
    """Return a tensor that all rows share, such as a window repeated for each timestep, with the rows' own ends."""
    if value.shared and any(is_ragged(value.sizes[dim]) for dim in dims):
        return Value(batch.every_row(value), value.sizes)
    return value


def _dims(call: Call) -> list[int]:
    """Return the dimensions over which a window moves: the last ones, as many as the operator's name says."""
    rank, number = call.value().rank, next(int(letter) for letter in str(call.target) if letter.isdigit())
    return list(range(rank - number, rank))


def _folded(tensor: torch.Tensor, dims: Sequence[int]) -> tuple[torch.Tensor, bool]:
    """Merge the rows with the items of a call; without a dimension of items, the rows are these."""
    return (tensor, False) if dims[0] == 1 else (tensor.flatten(0, 1), True)


def _unfolded(batch: Batch, call: Call, result: torch.Tensor, folded: bool, shared: bool) -> Results:
    if folded:
        rows = 1 if shared else batch.rows
        result = result.reshape(rows, *batch.padded_sizes(call.sizes[0]))
    return Value(result.squeeze(0) if shared else result, call.sizes[0], shared)


def convolution(batch: Batch, call: Call) -> Results:
    """Run a convolution over so many dimensions: zeros follow the last timestep."""
    value = call.value("input")
    if not all(other.shared for name in ("weight", "bias") if (other := call.get(name)) is not None):
        raise NoRule("a convolution whose weights are computed for each request")
    dims = _dims(call)
    if is_ragged(value.sizes[dims[0] - 1]):
        raise NoRule("a convolution whose channels are timesteps")
    reject_split_blocks(value, dims[0] - 1)
    along_time = [is_ragged(value.sizes[dim]) for dim in dims]
    reads_beyond = "transpose" in str(call.target) or _has_padding(call["padding"], along_time)
    value = _with_own_ends(batch, value, dims) if reads_beyond else value
    tensor = batch.masked(value, dims, 0) if reads_beyond else batch.rows_of(value)
    tensor, folded = _folded(tensor, dims)
    return _unfolded(batch, call, call.run(input=tensor), folded, value.shared)


def _has_padding(padding: Sequence[Any] | str, along_time: Sequence[bool]) -> bool:
    """Whether a convolution has padding along a dimension of timesteps."""
    if isinstance(padding, str):  # "same"; or "valid", for which a mask changes nothing
        return any(along_time)
    each = each_dim(padding, len(along_time))
    return any(size != 0 and is_time for size, is_time in zip(each, along_time, strict=True))


def overlap_add(batch: Batch, call: Call) -> Results:
    """Add overlapping windows, as `nn.Fold` does: windows beyond a row's last one are zeros.

    Raises `NoRule`: the windows are of two dimensions, so that those of a row do not come first.
    """
    value = call.value()
    flat = any(call["kernel_size"][dim] == call["output_size"][dim] == 1 for dim in (0, 1))
    if not flat or is_ragged(value.sizes[-2]):
        raise NoRule("an overlap-add of windows over more than one dimension")
    dims = [value.rank - 1]
    value = _with_own_ends(batch, value, dims)
    tensor, folded = _folded(batch.masked(value, dims, 0), dims)
    added = call.run(self=tensor, output_size=batch.padded_sizes(map(sympy.sympify, call["output_size"])))
    return _unfolded(batch, call, added, folded, value.shared)


def average_pool(batch: Batch, call: Call) -> Results:
    """Compute a mean over windows: zeros follow the last timestep, and count where padding of the call counts."""
    value, dims, pads = call.value(), _dims(call), any(call["padding"])
    counts_padding = pads and call["count_include_pad"]
    is_plain = not call["ceil_mode"] and (counts_padding or not pads)
    if is_plain or call.get("divisor_override") or not any(is_ragged(value.sizes[dim]) for dim in dims):
        return pool(0, batch, call)
    if counts_padding:
        raise NoRule("a mean over windows whose last window counts padding")
    value = Value(batch.every_row(value), value.sizes)
    sums, folded = _folded(batch.masked(value, dims, 0), dims)
    ones = Value(torch.ones_like(value.tensor), value.sizes)
    counts, _ = _folded(batch.masked(ones, dims, 0), dims)
    # Both are divided by the number of elements of the padded batch's window. Behind a row's end no element is counted.
    means = call.run(self=sums) / call.run(self=counts).clamp(min=1e-6)
    return _unfolded(batch, call, means, folded, shared=False)


def max_pool_with_indices(batch: Batch, call: Call) -> Results:
    """Compute a maximum over windows and its positions, counted in each row's own tensor."""
    dims = _dims(call)
    value = _with_own_ends(batch, call.value(), dims)
    tensor, folded = _folded(batch.masked(value, dims, float("-inf")), dims)
    pairs = zip(call.run(self=tensor), call.sizes, strict=True)
    values, places = (own.reshape(-1, *batch.padded_sizes(sizes)) if folded else own for own, sizes in pairs)
    own = unraveled(batch, [value.sizes[dim] for dim in dims], places.flatten(1)).reshape(-1, *places.shape[1:])
    return call.results([values, own], shared=value.shared)


def pool(fill: float, batch: Batch, call: Call) -> Results:
    """Pool over windows: what fills the padding changes no result."""
    dims = _dims(call)
    value = _with_own_ends(batch, call.value(), dims)
    tensor, folded = _folded(batch.masked(value, dims, fill), dims)
    return _unfolded(batch, call, call.run(self=tensor), folded, value.shared)


def adaptive_pool(batch: Batch, call: Call) -> Results:
    """Pool to a given size: all timesteps to one."""
    dims = _dims(call)
    value = _with_own_ends(batch, call.value(), dims)
    wanted: list[Any] = list(call["output_size"])
    changed = [(dim, size) for dim, size in zip(dims, wanted, strict=True) if value.sizes[dim] != size]
    ragged = [(dim, size) for dim, size in changed if is_ragged(value.sizes[dim])]
    if any(size != 1 for _, size in ragged):
        raise NoRule("pooling of the timesteps to a size other than 1")
    tensor = batch.rows_of(value)
    for dim, _ in ragged:
        tensor = mean_of_rows(batch, value, tensor, [dim], keep=True)
    tensor, folded = _folded(tensor, dims)
    if len(ragged) < len(changed):
        tensor = call.run(self=tensor, output_size=batch.padded_sizes(map(sympy.sympify, wanted)))
    return _unfolded(batch, call, tensor, folded, value.shared)


def upsample(batch: Batch, call: Call) -> Results:
    """Repeat each element: a constant number of times.

    Raises `NoRule`: the frame rate changes by a factor that is not a whole number.
    """
    value = call.value()
    if not any(map(is_ragged, value.sizes[2:])):
        return interpolation(batch, call)
    tensor = batch.rows_of(value)
    for dim in range(2, value.rank):
        factor = call.sizes[0][dim] / value.sizes[dim]
        if not factor.is_Integer:
            raise NoRule("a change of the frame rate by a factor that is not a whole number")
        if factor != 1:
            tensor = tensor.repeat_interleave(int(factor), dim + 1)
    return Value(tensor.squeeze(0) if value.shared else tensor, call.sizes[0], value.shared)


def interpolation(batch: Batch, call: Call) -> Results:
    """Interpolate between elements of dimensions that are not ragged. Raises `NoRule`: one is."""
    value = call.value()
    if any(map(is_ragged, value.sizes[2:])):
        raise NoRule("an interpolation over the timesteps")
    tensor, folded = _folded(batch.rows_of(value), range(2, value.rank))
    name = "self" if "self" in call.arguments else "input"
    return _unfolded(batch, call, call.run(**{name: tensor}), folded, value.shared)


def upsample_linear(batch: Batch, call: Call) -> Results:
    """Interpolate between timesteps: beyond its end, each row repeats its last one.

    Raises `NoRule`: the step depends on the number of timesteps.
    """
    value = call.value()
    if not is_ragged(value.sizes[2]):
        return interpolation(batch, call)
    if call["align_corners"] or not (call.get("scales") or call.get("scale_factors")):
        raise NoRule("an interpolation whose step depends on the number of timesteps")
    last = batch.own(value.sizes[2]) - 1
    tensor = taken(batch.every_row(value), 3, torch.minimum(batch.positions(value.sizes[2]), last.unsqueeze(1)))
    folded = tensor.flatten(0, 1)
    changed: dict[str, Any] = {"self" if "self" in call.arguments else "input": folded}
    if call["output_size"] is not None:
        changed["output_size"] = [batch.padded(call.sizes[0][2])]
    result = call.run(**changed)
    return Value(result.reshape(tensor.shape[0], *batch.padded_sizes(call.sizes[0])), call.sizes[0])

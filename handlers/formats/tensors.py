"""Conversion of nested lists, or of any tensor, to the declared tensor of an input. Errors name the input."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch

from ...bucketing.padding import torch_dtype
from ...bucketing.shapes import DType, TensorSpec
from ..responses import RequestError, abbreviate, invalid

SIZES_BELOW = 1 << 40
"""Bound of the product of a tensor's sizes."""
MOST_DIMENSIONS = 32


class _Numbers(NamedTuple):
    """The conversion of JSON numbers to one dtype."""

    accepted: frozenset[type]
    """Types of the accepted JSON values."""
    code: str
    """Type code of the `array` that they are put into."""
    read: torch.dtype
    """Dtype of that array."""
    dtype: torch.dtype


_FLOAT, _INT, _BOOL = frozenset({int, float}), frozenset({int}), frozenset({bool})
_NUMBERS: dict[DType, _Numbers] = {
    "float32": _Numbers(_FLOAT, "f", torch.float32, torch.float32),
    "float64": _Numbers(_FLOAT, "d", torch.float64, torch.float64),
    "float16": _Numbers(_FLOAT, "d", torch.float64, torch.float16),
    "bfloat16": _Numbers(_FLOAT, "d", torch.float64, torch.bfloat16),
    "int64": _Numbers(_INT, "q", torch.int64, torch.int64),
    "int32": _Numbers(_INT, "i", torch.int32, torch.int32),
    "int16": _Numbers(_INT, "h", torch.int16, torch.int16),
    "int8": _Numbers(_INT, "b", torch.int8, torch.int8),
    "uint8": _Numbers(_INT, "B", torch.uint8, torch.uint8),
    "bool": _Numbers(_BOOL, "B", torch.uint8, torch.bool),
}
_UNSIGNED: dict[DType, tuple[str, int]] = {"int64": ("Q", 1 << 63), "int32": ("I", 1 << 31)}
"""Code of the unsigned `array` of ids, and the bound below which they are the same numbers with a sign."""
_JSON_NAMES = {
    list: "a list", dict: "an object", str: "a string", bool: "a boolean", int: "an integer", float: "a float",
    type(None): "null",
}  # fmt: skip
_NAN_IS_TAKEN = "; `missing: nan` in the YAML lets it through"
_SEVERAL = 'leave out the batch dimension (a request over HTTP has several sequences as {"instances": [...]})'


def describe_spec(spec: TensorSpec) -> str:
    """Format an input's declaration for messages.

    >>> describe_spec(TensorSpec("frames", "float32", ("batch", "time", 12)))
    'float32 [time, 12]'
    """
    return f"{spec.dtype} [{', '.join(map(str, spec.item_shape))}]" if spec.item_shape else f"one {spec.dtype}"


def tensor_from_lists(value: object, spec: TensorSpec) -> torch.Tensor:
    """Convert nested lists of numbers to one sequence's part of an input.

    >>> tensor_from_lists([[1, 2], [3, 4.5]], TensorSpec("x", "float32", ("batch", "time", 2)))
    tensor([[1.0000, 2.0000],
            [3.0000, 4.5000]])

    Raises `RequestError`: 400, with the input's name.
    """
    flat, shape = flatten(value, len(spec.item_shape), spec)
    check_shape(shape, spec)
    ids = _ids(flat, spec)
    tensor = tensor_from_numbers(flat, spec) if ids is None else ids
    if len(shape) != 1:
        tensor = tensor.reshape(shape)
    if ids is None:
        check_content(tensor, spec)
    return tensor


def convert_tensor(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """Convert a tensor of any compatible dtype to one sequence's part of an input.

    Integers may become floats, and any width another as long as the values fit; floats never become integers.

    Raises `RequestError`: 400, with the input's name.
    """
    check_shape(tensor.shape, spec)
    dtype = torch_dtype(spec)
    if tensor.dtype is not dtype:
        _check_convertible(tensor, spec)
    if tensor.dtype is not dtype or not tensor.is_cpu or tensor.requires_grad:
        tensor = tensor.detach().to("cpu", dtype)
    own = tensor.contiguous()
    check_content(own, spec)
    return own


def flatten(value: object, dimensions: int, spec: TensorSpec) -> tuple[list[object], tuple[int, ...]]:
    """Return the elements of lists nested `dimensions` deep, in row-major order, and the lists' shape.

    Raises `RequestError`: 400, the nesting is not that deep, or lists of one depth differ in length.
    """
    if dimensions == 1 and type(value) is list:
        return value, (len(value),)
    level: list[object] = [value]
    shape: list[int] = []
    for depth in range(dimensions):
        lists = _as_lists(level, depth, spec)
        sizes = set(map(len, lists))
        if len(sizes) > 1:
            raise invalid_input(spec, _ragged(lists, depth))
        shape.append(sizes.pop() if sizes else 0)
        level = list(chain.from_iterable(lists))
    return level, tuple(shape)


def tensor_from_numbers(flat: Sequence[Any], spec: TensorSpec) -> torch.Tensor:
    """Make a flat tensor of JSON numbers: int, float and bool.

    Raises `RequestError`: 400, an element is not a number, is of the wrong kind, or does not fit the dtype.
    """
    kind = _NUMBERS[spec.dtype]
    if spec.nan and None in flat:
        flat = [math.nan if number is None else number for number in flat]
    found = set(map(type, flat))
    if not kind.accepted >= found:
        raise invalid_input(spec, _wrong_kind(flat, kind.accepted, spec))
    try:
        numbers = array(kind.code, flat)
    except OverflowError:
        raise invalid_input(spec, f"a value is out of the range of {spec.dtype}") from None
    if not numbers:
        return torch.empty(0, dtype=kind.dtype)
    tensor = torch.frombuffer(numbers, dtype=kind.read)
    rounded = int in found and kind.dtype in (torch.float32, torch.bfloat16)
    if rounded and not tensor.abs().max().item() < 1 << 53:  # or NaN
        tensor = torch.frombuffer(array(kind.code, map(_keeps_rest, flat)), dtype=kind.read)
    return tensor if kind.read is kind.dtype else tensor.to(kind.dtype)


def _keeps_rest(number: float) -> float:
    """Return an integer of 53 bits for a larger one, odd if bits are cut off, so that it is rounded as all bits are.

    Python rounds an integer to float64 first, and the tie that this may make would be rounded once more.

    >>> _keeps_rest(2**60 + 2**36 + 1) - 2**60 - 2**36
    256
    """
    if not isinstance(number, int) or (cut := number.bit_length() - 53) <= 0:
        return number
    return (number >> cut | (number & (1 << cut) - 1 > 0)) << cut


def are_sizes(sizes: Sequence[object]) -> bool:
    """Whether these are sizes of a tensor that can be made, with or without elements.

    Sizes of a tensor without elements may be anything; torch multiplies them all the same, those of 0 apart.

    >>> are_sizes([2, 3]), are_sizes([0, 2**39]), are_sizes([0, 2**39, 2**39]), are_sizes([-1]), are_sizes([True])
    (True, True, False, False, False)
    """
    if len(sizes) > MOST_DIMENSIONS:
        return False
    known = [size for size in sizes if type(size) is int and size >= 0]
    return len(known) == len(sizes) and math.prod(max(1, size) for size in known) < SIZES_BELOW


def check_shape(shape: tuple[int, ...], spec: TensorSpec) -> None:
    """Check that rank and sizes are as declared, and that there is at least one timestep.

    Raises `RequestError`: 400.
    """
    expected = spec.item_shape
    if len(shape) != len(expected):
        got = f"{len(shape)} dimension{'s' * (len(shape) > 1)}" if shape else "a single value"
        raise invalid_input(spec, f"expected {describe_spec(spec)}, got {got} (shape {list(shape)})")
    for axis, declared in enumerate(expected):
        if declared == "time" and shape[axis] == 0:
            raise invalid_input(spec, "the sequence is empty: at least one timestep is needed")
        if declared != "time" and shape[axis] != declared:
            raise invalid_input(
                spec, f"dimension {axis} has {shape[axis]} values, expected {declared} ({describe_spec(spec)})"
            )


def check_content(tensor: torch.Tensor, spec: TensorSpec) -> None:
    """Check that floats are finite, or NaN where that is taken, ids in the vocabulary, and values in the range.

    Raises `RequestError`: 400, with the index of one that is not.
    """
    if tensor.numel() == 0:
        return
    if spec.value_range is not None:
        _check_range(tensor, spec, spec.value_range)
    if tensor.dtype.is_floating_point:
        # A finite sum has finite terms only; the sum of finite terms may overflow, so the elements are checked then.
        if not math.isfinite(tensor.sum().item()):
            _check_finite(tensor, spec)
    elif spec.vocabulary is not None:
        least, most = torch.aminmax(tensor)
        if least.item() < 0 or most.item() >= spec.vocabulary:
            outside = (tensor < 0) | (tensor >= spec.vocabulary)
            found = int(tensor[outside].reshape(-1)[0])
            limits = f"outside the vocabulary (0 to {spec.vocabulary - 1})"
            raise invalid_input(spec, f"id {found}{_place(outside)} is {limits}")


def _check_range(tensor: torch.Tensor, spec: TensorSpec, bounds: tuple[float, float]) -> None:
    low, high = bounds
    if tensor.dtype.is_floating_point:
        outside = (tensor < low) | (tensor > high)
    else:  # torch compares integers with floats in float32, Python compares them exactly
        least, most = torch.aminmax(tensor)
        if low <= least.item() and most.item() <= high:
            return
        outside = tensor == (least if least.item() < low else most)
    if bool(outside.any()):
        found = tensor[outside].reshape(-1)[0].item()
        limits = f"outside of the range that the model takes ({low:.12g} to {high:.12g})"
        raise invalid_input(spec, f"value {found}{_place(outside)} is {limits}")


def _check_convertible(tensor: torch.Tensor, spec: TensorSpec) -> None:
    dtype = torch_dtype(spec)
    if _kind(tensor.dtype) > _kind(dtype) or (tensor.dtype == torch.bool) != (dtype == torch.bool):
        raise invalid_input(
            spec, f"expected {describe_spec(spec)}, got {str(tensor.dtype).removeprefix('torch.')} values"
        )
    if _kind(dtype) == 1 and not _fits(tensor, dtype):
        raise invalid_input(spec, f"a value is out of the range of {spec.dtype}")


def _check_finite(tensor: torch.Tensor, spec: TensorSpec) -> None:
    odd = tensor.isinf() if spec.nan else ~torch.isfinite(tensor)
    if bool(odd.any()):
        is_nan = bool(tensor[odd].reshape(-1)[0].isnan())
        problem = f"NaN{_NAN_IS_TAKEN}" if is_nan else f"not finite, or too large for {spec.dtype}"
        raise invalid_input(spec, f"the value{_place(odd)} is {problem}")


def invalid_input(spec: TensorSpec, problem: str) -> RequestError:
    """Refuse an input, by name."""
    return invalid(f"input {spec.name!r}: {problem}")


def _ids(flat: list[Any], spec: TensorSpec) -> torch.Tensor | None:
    """Make the flat tensor of ids; None if one is not in the vocabulary, or the input is not of ids.

    It takes less time than `tensor_from_numbers` and `check_content`: an unsigned `array` refuses negative ids, and the
    greatest of a list is found faster than that of a tensor.
    """
    if spec.vocabulary is None or spec.dtype not in _UNSIGNED or spec.value_range is not None:
        return None
    if not flat or not _INT.issuperset(map(type, flat)):
        return None
    code, below = _UNSIGNED[spec.dtype]
    if max(flat) >= min(spec.vocabulary, below):
        return None
    try:
        numbers = array(code, flat)
    except OverflowError:
        return None
    return torch.frombuffer(numbers, dtype=torch_dtype(spec))


def _as_lists(level: list[Any], depth: int, spec: TensorSpec) -> list[list[object]]:
    strangers = set(map(type, level)) - {list, tuple}
    if strangers:
        found = _json_name(strangers.pop())
        raise invalid_input(
            spec, f"expected {describe_spec(spec)}, but found {found} where dimension {depth} should be a list"
        )
    return level


def _ragged(lists: list[list[object]], depth: int) -> str:
    first = len(lists[0])
    index = next(i for i, row in enumerate(lists) if len(row) != first)
    return (
        f"the lists of dimension {depth} differ in length: the first has {first} values, "
        f"number {index} has {len(lists[index])}"
    )


def _wrong_kind(flat: Sequence[object], accepted: frozenset[type], spec: TensorSpec) -> str:
    index = next(i for i, element in enumerate(flat) if type(element) not in accepted)
    found = flat[index]
    if isinstance(found, list):
        return f"expected {describe_spec(spec)}, but the lists are nested deeper: {_SEVERAL}"
    text = f" ({abbreviate(found)})" if isinstance(found, (str, float)) else ""
    text = _NAN_IS_TAKEN if found is None and float in accepted else text
    return f"expected {describe_spec(spec)}, but value {index} is {_json_name(type(found))}{text}"


def _json_name(kind: type) -> str:
    return _JSON_NAMES.get(kind, f"a {kind.__name__}")


def _place(mask: torch.Tensor) -> str:
    """The index of the first value, in words; nothing for a single number.

    >>> _place(torch.tensor([False, True])), _place(torch.tensor(True))
    (' at [1]', '')
    """
    return f" at {torch.nonzero(mask)[0].tolist()}" if mask.dim() else ""


def _kind(dtype: torch.dtype) -> int:
    """Rank bool and integers, floats, and complex numbers, which no input has."""
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else 1


def _fits(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    wide = tensor.to(torch.int64)
    if str(tensor.dtype) == "torch.uint64" and bool((wide < 0).any()):  # wrapped around; an old torch has none
        return False
    limits = torch.iinfo(dtype)
    return not bool(((wide < limits.min) | (wide > limits.max)).any())

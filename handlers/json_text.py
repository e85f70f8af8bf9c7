"""Answers as JSON text: the same text with and without orjson, which only makes it faster.

A float is written with as many significant digits as its dtype can tell apart (float32 9, float16 5, bfloat16 4), so
reading it back gives the same bits, in half the bytes that Python's text of the same number takes. float64 is written
as Python writes it. NaN and infinity, which JSON has not, are written as null.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

_DIGITS = {torch.float32: 9, torch.float16: 5, torch.bfloat16: 4}
_LOWEST, _HIGHEST = -60, 60  # exponents of ten that scaling a float32 to 9 digits may need
_PLAIN_FROM, _PLAIN_BELOW = 1e-4, 1e16  # between these every writer uses the same notation
_FEW = 24  # numbers that Python writes one by one before torch has begun


@cache
def fast_json() -> Any | None:
    """The module orjson where the host has it."""
    try:
        return importlib.import_module("orjson")
    except ImportError:
        return None


def to_json(value: object) -> bytes:
    r"""JSON text of mappings, sequences, strings, numbers and tensors, without spaces.

    >>> to_json({"logits": torch.tensor([[0.1, 1e-7], [float("nan"), 2.0]]), "id": "é"})
    b'{"logits":[[0.100000001,1.00000001e-07],[null,2.0]],"id":"\\u00e9"}'

    Raises:
        TypeError: something in it is none of these.
        ValueError: a number outside a tensor is not finite.
    """
    return _text(value).encode("ascii")


def _text(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return _float_text(value) if value.dtype.is_floating_point else _plain(value.tolist())
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_key(key)}:{_text(part)}" for key, part in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value, allow_nan=False)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"the keys of a JSON object are strings, not {type(key).__name__}")
    return json.dumps(key)


def _float_text(tensor: torch.Tensor) -> str:
    if tensor.numel() == 0:
        return _plain(tensor.tolist())
    if tensor.numel() <= _FEW:
        digits = _DIGITS.get(tensor.dtype, 17)
        return _nested([_number_text(number, digits) for number in tensor.reshape(-1).tolist()], tuple(tensor.shape))
    numbers = _shortened(tensor)
    magnitude = numbers.abs()
    odd = ~((magnitude >= _PLAIN_FROM) & (magnitude < _PLAIN_BELOW)) & (magnitude != 0)
    if fast_json() is not None and not bool(odd.any()):
        return _plain(numbers.tolist())
    flat: list[float] = numbers.reshape(-1).tolist()
    return _nested(_number_texts(flat, torch.nonzero(odd.reshape(-1)).reshape(-1).tolist()), tuple(tensor.shape))


def _plain(value: object) -> str:
    """Nested lists of numbers that every writer writes alike."""
    fast = fast_json()
    return str(fast.dumps(value), "ascii") if fast else json.dumps(value, separators=(",", ":"))


def _number_text(number: float, digits: int) -> str:
    return repr(float(f"{number:.{digits - 1}e}")) if math.isfinite(number) else "null"


def _number_texts(flat: list[float], odd: list[int]) -> list[str]:
    """Each number's text; `odd` are the places of those that writers write differently."""
    texts = _plain(flat)[1:-1].split(",")
    for place in odd:
        texts[place] = _number_text(flat[place], 17)
    return texts


def _nested(texts: list[str], shape: tuple[int, ...]) -> str:
    for size in reversed(shape):
        texts = ["[" + ",".join(texts[start : start + size]) + "]" for start in range(0, len(texts), size)]
    return texts[0]


def _shortened(tensor: torch.Tensor) -> torch.Tensor:
    """The float64 nearest to each number's decimal text of the digits its dtype needs."""
    exact = tensor.detach().to(torch.float64)
    digits = _DIGITS.get(tensor.dtype)
    if digits is None:
        return exact
    magnitude = torch.where(exact == 0, 1.0, exact.abs())
    exponents = digits - 1 - torch.floor(torch.log10(magnitude))
    places = exponents.nan_to_num(0.0, 0.0, 0.0).clamp(_LOWEST, _HIGHEST).to(torch.int64) - _LOWEST
    scale = _powers_of_ten()[places]
    return torch.round(exact * scale) / scale


@cache
def _powers_of_ten() -> torch.Tensor:
    return torch.tensor([float(f"1e{exponent}") for exponent in range(_LOWEST, _HIGHEST + 1)], dtype=torch.float64)

"""JSON text of responses: the same text with and without orjson, which only makes it faster.

A float is written with as many significant digits as its dtype can distinguish (float32 9, float16 5, bfloat16 4). So
reading it back gives the same bits, and the text has half the bytes of Python's text of the same number. float64 is
written as Python writes it. NaN and infinity, which JSON does not have, are written as null.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch

_DIGITS = {torch.float32: 9, torch.float16: 5, torch.bfloat16: 4}
_PLAIN_FROM, _PLAIN_BELOW = 1e-4, 1e16  # between these, every JSON writer uses the same notation
_MAX_EXPONENT = 12  # of ten: scales the smallest plain number to 9 digits
_LONGEST_NUMBER = 26  # characters of a float64 or an int64, with sign, exponent and comma, and some brackets
_BLOCK = 1 << 16  # numbers whose text is made at once, where a text may be too long
_FEW = 500  # up to so many numbers, Python formats faster than torch and orjson


@cache
def fast_json() -> Any | None:
    """Return the module orjson if the host has it."""
    try:
        return importlib.import_module("orjson")
    except ImportError:
        return None


class ResponseTooLong(ValueError):
    """A text that would be longer than its bound; it was not made to its end."""


def to_json(value: object, most: int | None = None) -> bytes:
    r"""Write mappings, sequences, strings, numbers and tensors as JSON text in UTF-8, without spaces.

    >>> to_json({"logits": torch.tensor([[0.1, 1e-7], [float("nan"), 2.0]]), "id": "é"}).decode()
    '{"logits":[[0.100000001,1.00000001e-07],[null,2.0]],"id":"é"}'

    Raises `TypeError`: a value is none of these.
    Raises `ValueError`: a number outside a tensor is not finite.
    Raises `ResponseTooLong`: the text would have more than `most` bytes.
    """
    if most is None or _LONGEST_NUMBER * _numbers(value) < most:
        text = _encoded(_text(value))
        if most is not None and len(text) > most:
            raise ResponseTooLong(f"the text has {len(text)} bytes, at most {most} are allowed")
        return text
    content = bytearray()
    for part in map(_encoded, _parts(value)):
        content += part
        if len(content) > most:
            raise ResponseTooLong(f"the text has more than {most} bytes")
    return bytes(content)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")  # half of a surrogate pair is an escape of JSON


def _numbers(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel()
    if isinstance(value, Mapping):
        return sum(map(_numbers, value.values()))
    return sum(map(_numbers, value)) if isinstance(value, (list, tuple)) else 0


def _parts(value: object) -> Iterator[str]:
    """Yield the text block by block, each of a bounded number of numbers."""
    if isinstance(value, torch.Tensor):
        yield from _blocks(value)
    elif isinstance(value, Mapping):
        yield "{"
        for index, (key, part) in enumerate(value.items()):
            yield f"{',' * (index > 0)}{_key(key)}:"
            yield from _parts(part)
        yield "}"
    elif isinstance(value, (list, tuple)):
        yield "["
        for index, part in enumerate(value):
            yield "," * (index > 0)
            yield from _parts(part)
        yield "]"
    else:
        yield _text(value)


def _blocks(tensor: torch.Tensor) -> Iterator[str]:
    if tensor.numel() <= _BLOCK or tensor.dim() == 0:
        yield _text(tensor)
        return
    row = tensor[0].numel()
    yield "["
    for index, block in enumerate(tensor.split(max(1, _BLOCK // row)) if row <= _BLOCK else tensor):
        yield "," * (index > 0)
        if row <= _BLOCK:
            yield _text(block)[1:-1]
        else:
            yield from _blocks(block)
    yield "]"


def _text(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return _tensor_text(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_key(key)}:{_text(part)}" for key, part in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"the keys of a JSON object are strings, not {type(key).__name__}")
    return json.dumps(key, ensure_ascii=False)


def _tensor_text(tensor: torch.Tensor) -> str:
    digits, count = _DIGITS.get(tensor.dtype), tensor.numel()
    if digits is not None and 0 < count <= _FEW:
        return _few_text(tensor, digits)
    if count == 0 or not tensor.dtype.is_floating_point:
        return _plain(tensor.tolist())
    exact = tensor.detach().to(torch.float64)
    numbers = exact if digits is None else _shortened(exact, digits)
    magnitude = exact.abs()
    below = _PLAIN_BELOW if digits is None else 10.0**digits  # beyond, even the digits before the point are cut
    odd = ~((magnitude >= _PLAIN_FROM) & (magnitude < below)) & (magnitude != 0)
    if fast_json() is not None and not bool(odd.any()):
        return _plain(numbers.tolist())
    texts = _plain(numbers.reshape(-1).tolist())[1:-1].split(",")
    given = exact.reshape(-1).tolist()
    for place in torch.nonzero(odd.reshape(-1)).reshape(-1).tolist():
        texts[place] = _number_text(given[place], digits or 17)
    return _nested(texts, tuple(tensor.shape))


def _few_text(tensor: torch.Tensor, digits: int) -> str:
    """Format all numbers together, and then those again that Python's repr writes differently."""
    is_vector = tensor.dim() == 1
    numbers = tensor.tolist() if is_vector else tensor.reshape(-1).tolist()
    joined = f",%.{digits}g" * len(numbers) % tuple(numbers)
    if is_vector and joined.count(".") == len(numbers) and "e+" not in joined:  # nearly always
        return f"[{joined[1:]}]"
    texts = [
        text if ("." in text or "e-" in text) and "e+" not in text else _number_text(number, digits)
        for text, number in zip(joined[1:].split(","), numbers)
    ]
    return _nested(texts, tuple(tensor.shape))


def _plain(value: object) -> str:
    """Write nested lists of numbers whose text is the same with every JSON writer."""
    fast = fast_json()
    return str(fast.dumps(value), "ascii") if fast else json.dumps(value, separators=(",", ":"))


def _number_text(number: float, digits: int) -> str:
    return repr(float(f"{number:.{digits - 1}e}")) if math.isfinite(number) else "null"


def _nested(texts: list[str], shape: tuple[int, ...]) -> str:
    for size in reversed(shape):
        texts = ["[" + ",".join(texts[start : start + size]) + "]" for start in range(0, len(texts), size)]
    return texts[0]


def _shortened(exact: torch.Tensor, digits: int) -> torch.Tensor:
    """Round each number whose text is plain to the float64 nearest to its text of so many digits.

    Only the division rounds: a float32 has 24 bits, 10 to the 12 has 28 before its zeros, a float64 holds 53.
    """
    exponents = digits - 1 - torch.floor(torch.log10(torch.where(exact == 0, 1.0, exact.abs())))
    scale = _powers_of_ten()[exponents.nan_to_num(0.0, 0.0, 0.0).clamp(0, _MAX_EXPONENT).to(torch.int64)]
    return torch.round(exact * scale) / scale


@cache
def _powers_of_ten() -> torch.Tensor:
    return torch.tensor([10.0**exponent for exponent in range(_MAX_EXPONENT + 1)], dtype=torch.float64)

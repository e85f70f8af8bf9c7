import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.handlers.formats import json_text
from torchserve_neuron_lstm.handlers.formats.json_text import to_json

AWKWARD = [
    *(0.0, -0.0, 1.0, -1.0, 0.1, 1e-4, 9.9999e-5, 1e-5, 1e-7, 1e15, 1e16, 123456789.0, 3e38, 1e-38, 1e-45, 1e22, 0.5)
]
floats32 = st.sampled_from(AWKWARD) | st.floats(width=32, allow_nan=False, allow_infinity=False)


def few_or_many(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[list[float]]:
    """Lists for each of the two algorithms that write them."""
    few = st.lists(numbers, max_size=12)
    return few | few.filter(bool).map(lambda some: some * (json_text._FEW // len(some) + 1))


any_floats = st.floats() | st.sampled_from(AWKWARD)


@contextmanager
def without_orjson() -> Iterator[None]:
    with mock.patch.object(json_text, "fast_json", return_value=None):
        yield


def bits(numbers: list[float], dtype: torch.dtype) -> list[int]:
    width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    return torch.tensor(numbers, dtype=torch.float64).to(dtype).view(width).tolist()


def test_orjson_is_used_where_it_is_installed() -> None:
    assert json_text.fast_json() is orjson


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@given(numbers=few_or_many(any_floats), columns=st.integers(1, 3))
def test_the_text_is_the_same_with_and_without_orjson(dtype: torch.dtype, numbers: list[float], columns: int) -> None:
    used = len(numbers) // columns * columns
    tensor = torch.tensor(numbers[:used], dtype=torch.float64).to(dtype).reshape(-1, columns)

    fast = to_json(tensor)
    with without_orjson():
        assert to_json(tensor) == fast


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@given(numbers=few_or_many(floats32).filter(bool))
def test_reading_the_text_gives_back_the_same_bits(dtype: torch.dtype, numbers: list[float]) -> None:
    """Readers of JSON parse a float64, which is then rounded to the dtype."""
    tensor = torch.tensor(numbers, dtype=torch.float64).to(dtype)
    tensor = torch.where(torch.isfinite(tensor), tensor, torch.zeros((), dtype=dtype))

    assert bits(tensor.double().tolist(), dtype) == bits(json.loads(to_json(tensor)), dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@given(numbers=st.lists(any_floats, min_size=1, max_size=12))
def test_the_text_of_a_number_is_the_same_among_few_and_among_many(dtype: torch.dtype, numbers: list[float]) -> None:
    few = torch.tensor(numbers, dtype=torch.float64).to(dtype)
    times = json_text._FEW // len(numbers) + 1

    assert to_json(few.repeat(times, 1)) == b"[" + b",".join([to_json(few)] * times) + b"]"


@given(st.lists(st.floats(2**-12, 1e8, width=32), min_size=1))
def test_a_float32_takes_at_most_nine_digits(numbers: list[float]) -> None:
    for text in to_json(torch.tensor(numbers))[1:-1].split(b","):
        assert len(text.replace(b".", b"").strip(b"0")) <= 9


def test_nothing_but_valid_json_is_written() -> None:
    odd = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    for _ in range(2):
        assert to_json({"x": odd}) == b'{"x":[null,null,null,1.0]}'
        assert to_json(odd[0]) == b"null"
        with without_orjson():
            assert to_json({"x": odd}) == b'{"x":[null,null,null,1.0]}'
    with pytest.raises(ValueError, match="Out of range"):
        to_json([math.nan])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.tensor([[1, 2], [3, 4]]), b"[[1,2],[3,4]]"),
        (torch.tensor([True, False]), b"[true,false]"),
        (torch.tensor(2.5), b"2.5"),
        (torch.zeros(0), b"[]"),
        (torch.zeros(2, 0), b"[[],[]]"),
        (torch.tensor([1e-5, 2e-4]), b"[9.99999975e-06,0.000199999995]"),
        ({"a": [1, None, True, "é\ud800\n"], "b": (0.1,)}, '{"a":[1,null,true,"é\\ud800\\n"],"b":[0.1]}'.encode()),
    ],
)
def test_texts_are_these(value: object, text: bytes) -> None:
    assert to_json(value) == text
    with without_orjson():
        assert to_json(value) == text


@pytest.mark.parametrize("value", [{1: 2}, {"a": object()}, b"bytes", [set()]])
def test_what_json_has_not_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError):
        to_json(value)


def test_a_text_that_may_be_too_long_is_made_in_as_few_blocks_as_their_bound_allows() -> None:
    """Rows are small here: one piece a row would be slow, one for all would take unbounded memory."""
    tensor = torch.zeros(100_000, 5, dtype=torch.int64)
    with mock.patch.object(json_text, "_text", wraps=json_text._text) as text:
        to_json(tensor, most=5_000_000)
    sizes = [call.args[0].numel() for call in text.call_args_list]

    assert sum(sizes) == tensor.numel()
    assert max(sizes) <= json_text._BLOCK
    assert len(sizes) == 8


def test_values_beside_a_large_tensor_are_written_as_without_a_bound() -> None:
    """The text is then made part by part."""
    value = {"a": [torch.arange(300_000).view(3, -1), "b"], "c": {"d": 1.5, "e": [None, (True, 2)]}, "f": []}

    assert to_json(value, most=3_000_000) == to_json(value)

from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.shapes import DType, TensorSpec
from torchserve_neuron_lstm.handlers.formats.tensors import convert_tensor, tensor_from_lists
from torchserve_neuron_lstm.handlers.responses import RequestError

FRAMES = TensorSpec("x", "float32", ("batch", "time", 2))
IDS = TensorSpec("x", "int64", ("batch", "time"), vocabulary=10)
MISSING = TensorSpec("x", "float32", ("batch", "time", 2), nan=True)
FLAGS = TensorSpec("x", "bool", ("batch", "time"))
DEEP = [[[[[1]]]]]


@pytest.mark.parametrize(
    ("spec", "value", "told"),
    [
        (IDS, 7, "expected int64 [time], but found an integer where dimension 0 should be a list"),
        (IDS, None, "found null"),
        (IDS, {"a": 1}, "found an object"),
        (IDS, "12", "found a string"),
        (IDS, [], "the sequence is empty"),
        (IDS, [1.0, 2], "value 0 is a float (1.0)"),
        (IDS, [1, True], "value 1 is a boolean"),
        (IDS, [1, None], "value 1 is null"),
        (IDS, [1, "two"], "value 1 is a string ('two')"),
        (IDS, [1, [2]], "the lists are nested deeper"),
        (IDS, [[1, 2]], 'deeper: leave out the batch dimension (a request over HTTP has several sequences as {"'),
        (IDS, DEEP, "the lists are nested deeper"),
        (IDS, [3, 10, 4], "id 10 at [1] is outside the vocabulary (0 to 9)"),
        (IDS, [3, -1, 4], "id -1 at [1] is outside the vocabulary (0 to 9)"),
        (IDS, [1 << 63], "out of the range of int64"),
        (FRAMES, [[1, 2], [3]], "number 1 has 1"),
        (FRAMES, [[1, 2], 3], "found an integer where dimension 1 should be a list"),
        (FRAMES, [[1, 2, 3]], "dimension 1 has 3 values, expected 2"),
        (FRAMES, [[]], "dimension 1 has 0 values, expected 2"),
        (FRAMES, [1.0, 2.0], "found a float where dimension 1 should be a list"),
        (FRAMES, [[1.0, float("nan")]], "the value at [0, 1] is NaN; `missing: nan` in the YAML lets it through"),
        (FRAMES, [[1.0, None]], "value 1 is null; `missing: nan` in the YAML lets it through"),
        (MISSING, [[None, -float("inf")]], "the value at [0, 1] is not finite"),
        (FRAMES, [[1.0, -float("inf")]], "the value at [0, 1] is not finite"),
        (FRAMES, [[1.0, 1e39]], "the value at [0, 1] is not finite, or too large for float32"),
        (FRAMES, [[1, 10**400]], "out of the range of float32"),
        (FRAMES, [[True, 1.0]], "value 0 is a boolean"),
        (FLAGS, [1, 0], "value 0 is an integer"),
    ],
)
def test_what_an_input_does_not_take_is_refused_by_its_name_and_the_reason(
    spec: TensorSpec, value: object, told: str
) -> None:
    with pytest.raises(RequestError) as refused:
        tensor_from_lists(value, spec)

    assert refused.value.status == 400
    assert refused.value.message.startswith("input 'x': ")
    assert told in refused.value.message


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_integers_are_taken_to_the_limits_of_their_dtype_and_no_further(dtype: DType) -> None:
    spec = TensorSpec("x", dtype, ("time",))
    limits = torch.iinfo(getattr(torch, dtype))

    assert [limits.min, limits.max] == tensor_from_lists([limits.min, limits.max], spec).tolist()
    for beyond in (limits.min - 1, limits.max + 1):
        with pytest.raises(RequestError, match="out of the range"):
            tensor_from_lists([beyond], spec)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@given(st.lists(st.floats(-60000, 60000), min_size=1))
def test_floats_arrive_as_torch_itself_would_round_them(dtype: DType, numbers: list[float]) -> None:
    expected = torch.tensor(numbers, dtype=torch.float64).to(getattr(torch, dtype))

    assert torch.equal(expected, tensor_from_lists(numbers, TensorSpec("x", dtype, ("batch", "time"))))


@pytest.mark.parametrize(("dtype", "largest"), [("float16", 65504.0), ("float32", 3.4028234663852886e38)])
def test_finite_floats_are_taken_though_their_sum_is_not(dtype: DType, largest: float) -> None:
    spec = TensorSpec("x", dtype, ("batch", "time"))

    assert tensor_from_lists([largest] * 3, spec).tolist() == [largest] * 3
    assert convert_tensor(torch.tensor([-largest] * 3, dtype=getattr(torch, dtype)), spec).tolist() == [-largest] * 3
    with pytest.raises(RequestError, match=r"the value at \[3\] is not finite"):
        tensor_from_lists([largest, largest, -largest, float("-inf"), float("inf")], spec)


def test_ids_without_any_features_are_in_every_vocabulary() -> None:
    """There is no id that could be outside."""
    spec = TensorSpec("x", "int64", ("batch", "time", 0), vocabulary=10)

    assert tensor_from_lists([[], []], spec).shape == (2, 0)
    assert convert_tensor(torch.zeros(2, 0, dtype=torch.int64), spec).shape == (2, 0)


@pytest.mark.parametrize(
    ("dtype", "limits", "inside", "outside"),
    [
        ("int64", (-(2.0**24), 2.0**24), [-(2**24), 2**24], [-(2**24) - 1, 2**24 + 1]),
        ("int32", (0.5, 2.0**30 + 1), [1, 2**30 + 1], [0, 2**30 + 2]),
        ("int64", (-(2.0**63), 2.0**63), [-(2**63), 2**63 - 1], []),
        ("int64", (2.0**63, float("inf")), [], [2**63 - 1]),
        ("int8", (-300.0, 300.0), [-128, 127], []),
        ("uint8", (-5.0, 254.5), [0, 254], [255]),
        ("uint8", (256.0, 300.0), [], [0, 255]),
        ("bool", (1.0, 1.0), [True], [False]),
        ("float32", (0.1, 1.0), [0.1, 1.0], [0.09, 1.1]),
    ],
)
def test_a_range_holds_exactly_for_every_dtype(
    dtype: DType, limits: tuple[float, float], inside: list[float], outside: list[float]
) -> None:
    spec = TensorSpec("x", dtype, ("batch", "time"), value_range=limits)
    if inside:
        assert tensor_from_lists(inside, spec).shape == (len(inside),)
    for value in outside:
        with pytest.raises(RequestError, match=rf"at \[{len(inside)}\] is outside of the range"):
            tensor_from_lists([*inside, value, *inside], spec)


def test_a_float_input_takes_integers_and_a_bool_input_booleans() -> None:
    assert tensor_from_lists([[1, 2.5]], FRAMES).tolist() == [[1.0, 2.5]]
    assert tensor_from_lists([True, False], FLAGS).tolist() == [True, False]


def test_an_input_without_time_may_be_a_single_number() -> None:
    assert tensor_from_lists(3, TensorSpec("speaker", "int64", ("batch",))).item() == 3


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
        max_leaves=20,
    ),
    st.sampled_from([FRAMES, IDS, FLAGS, TensorSpec("x", "float32", ()), TensorSpec("x", "float32", (2, "time", 1))]),
)
def test_any_json_value_is_either_a_tensor_as_declared_or_refused(value: object, spec: TensorSpec) -> None:
    with suppress(RequestError):
        tensor = tensor_from_lists(value, spec)
        assert len(tensor.shape) == len(spec.item_shape)
        assert tensor.dtype == getattr(torch, spec.dtype)
        assert not tensor.dtype.is_floating_point or bool(torch.isfinite(tensor).all())


@pytest.mark.parametrize(
    ("spec", "tensor", "told"),
    [
        (IDS, torch.tensor([1.0]), "got float32 values"),
        (IDS, torch.tensor([True]), "got bool values"),
        (FRAMES, torch.ones(1, 2, dtype=torch.bool), "got bool values"),
        (FRAMES, torch.ones(1, 2, dtype=torch.complex64), "got complex64 values"),
        (IDS, torch.tensor([3, 10, 11]), "id 10 at [1] is outside the vocabulary (0 to 9)"),
        (IDS, torch.tensor([3, -1, -2]), "id -1 at [1] is outside the vocabulary (0 to 9)"),
        (FRAMES, torch.tensor([[1.0, 2.0], [torch.inf, torch.nan]]), "the value at [1, 0] is not finite"),
        (FRAMES, torch.ones(2), "got 1 dimension (shape [2])"),
        (FRAMES, torch.ones(0, 2), "the sequence is empty"),
        (FRAMES, torch.full((1, 2), 1e300, dtype=torch.float64), "too large for float32"),
        (TensorSpec("x", "uint8", ("time",)), torch.tensor([-1], dtype=torch.int8), "out of the range of uint8"),
        (TensorSpec("x", "int32", ("time",)), torch.tensor([1 << 31]), "out of the range of int32"),
        (TensorSpec("x", "int64", ("time",)), torch.tensor([(1 << 64) - 1], dtype=torch.uint64), "out of the range"),
    ],
)
def test_tensors_are_held_to_the_same_declaration(spec: TensorSpec, tensor: torch.Tensor, told: str) -> None:
    with pytest.raises(RequestError) as refused:
        convert_tensor(tensor, spec)

    assert told in refused.value.message


def test_tensors_of_another_width_are_taken_where_the_values_fit() -> None:
    for dtype in (torch.int32, torch.uint8, torch.uint16, torch.uint64):
        assert convert_tensor(torch.tensor([1, 9], dtype=dtype), IDS).tolist() == [1, 9]
    for dtype in (torch.float64, torch.float16, torch.int64):
        assert convert_tensor(torch.ones(3, 2, dtype=dtype), FRAMES).dtype == torch.float32
    assert convert_tensor(torch.tensor([True, False]), FLAGS).tolist() == [True, False]


def test_a_tensor_of_the_right_kind_is_taken_as_it_is_and_one_for_training_without_its_history() -> None:
    frames = torch.rand(3, 2)

    assert convert_tensor(frames, FRAMES) is frames
    assert convert_tensor(torch.rand(2, 3).t(), FRAMES).is_contiguous()
    assert not convert_tensor(torch.rand(3, 2, requires_grad=True), FRAMES).requires_grad

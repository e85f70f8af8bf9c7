from collections.abc import Mapping

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from torchserve_neuron_lstm.backends.signature import Signature, TensorType, WrongInput, read_signature, write_signature

DTYPES = ("float32", "float64", "int64", "bool", "bfloat16")
SYMBOLS = ("s0", "s1")
Sizes = Mapping[str, int]
sizes = st.integers(0, 3)
kinds = st.builds(
    TensorType,
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.one_of(sizes, st.sampled_from(SYMBOLS)), max_size=3).map(tuple),
)
signatures = st.lists(kinds, min_size=1, max_size=3).map(
    lambda types: Signature({f"input_{index}": kind for index, kind in enumerate(types)}, {})
)
symbols = st.fixed_dictionaries(dict.fromkeys(SYMBOLS, sizes))


def fitting(signature: Signature, symbols: Sizes) -> list[torch.Tensor]:
    return [
        torch.zeros([size if isinstance(size, int) else symbols[size] for size in kind.shape], dtype=kind.torch_dtype)
        for kind in signature.inputs.values()
    ]


@given(signatures, symbols)
def test_what_fits_is_taken(signature: Signature, symbols: Sizes) -> None:
    signature.check_inputs(fitting(signature, symbols))


@given(signatures, symbols, st.data())
def test_another_dtype_is_refused_by_name(signature: Signature, symbols: Sizes, data: st.DataObject) -> None:
    inputs = fitting(signature, symbols)
    index = data.draw(st.integers(0, len(inputs) - 1))
    other = data.draw(st.sampled_from(DTYPES).filter(lambda name: name != signature.inputs[f"input_{index}"].dtype))
    inputs[index] = inputs[index].to(getattr(torch, other))

    with pytest.raises(WrongInput, match=f"'input_{index}' is {other} "):
        signature.check_inputs(inputs)


@given(signatures, symbols, st.data())
def test_another_number_of_dimensions_is_refused(signature: Signature, symbols: Sizes, data: st.DataObject) -> None:
    inputs = fitting(signature, symbols)
    index = data.draw(st.integers(0, len(inputs) - 1))
    inputs[index] = inputs[index][None]

    with pytest.raises(WrongInput, match=f"'input_{index}'"):
        signature.check_inputs(inputs)


@given(signatures, symbols, st.data())
def test_a_size_that_disagrees_is_refused(signature: Signature, symbols: Sizes, data: st.DataObject) -> None:
    inputs = fitting(signature, symbols)
    fixed = [
        (index, place)
        for index, kind in enumerate(signature.inputs.values())
        for place, size in enumerate(kind.shape)
        if isinstance(size, int) or sum(other.shape.count(size) for other in signature.inputs.values()) > 1
    ]
    assume(fixed)
    index, place = data.draw(st.sampled_from(fixed))
    shape = list(inputs[index].shape)
    shape[place] += 1
    inputs[index] = torch.zeros(shape, dtype=inputs[index].dtype)

    with pytest.raises(WrongInput, match="but the program was compiled for"):
        signature.check_inputs(inputs)


@given(signatures, symbols, st.integers(-1, 1).filter(bool))
def test_another_number_of_inputs_is_refused(signature: Signature, symbols: Sizes, more: int) -> None:
    inputs = fitting(signature, symbols)
    wrong = [*inputs, torch.zeros(1)] if more > 0 else inputs[:-1]

    with pytest.raises(WrongInput, match=rf"^{len(wrong)} inputs, but the program takes {len(inputs)}: input_0"):
        signature.check_inputs(wrong)


@given(signatures)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, signature: Signature) -> None:
    folder = tmp_path_factory.mktemp("signature")
    write_signature(signature, folder)
    found = read_signature(folder)

    assert found == signature
    assert list(found.inputs) == list(signature.inputs)

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.own_model.learned_outputs import Observed, learned_outputs, learned_size
from torchserve_neuron_lstm.bucketing.shapes import TensorSpec, size_at
from torchserve_neuron_lstm.handlers.runtime.model_outputs import row_of


def test_batch_time_numbers_and_sizes_that_differ_by_request_are_told_apart() -> None:
    answers = [
        (length, (Observed("logits", "float32", (1, length, 5)), Observed("words", "int64", (words,))))
        for length, words in ((3, 2), (9, 2), (5, 4))
    ]

    assert learned_outputs(answers, [0, None], None) == (
        TensorSpec("logits", "float32", ("batch", "time", 5)),
        TensorSpec("words", "int64", ("any",)),
    )


def test_an_empty_list_has_the_dtype_of_the_others() -> None:
    answers = [(3, (Observed("", "", (0,)),)), (4, (Observed("", "int64", (2,)),))]

    assert learned_outputs(answers, [None], ["words"]) == (TensorSpec("words", "int64", (2,)),)


def test_a_number_beside_a_list_of_one_is_such_a_list() -> None:
    answers = [(3, (Observed("loss", "float32", (1,)),)), (4, (Observed("loss", "float32", ()),))]
    (spec,) = learned_outputs(answers, [None], None)

    assert spec == TensorSpec("loss", "float32", (1,))
    assert row_of(torch.tensor(0.5), spec).tolist() == [0.5]


@given(st.integers(1, 8), st.integers(-3, 3), st.lists(st.integers(4, 60), min_size=4, max_size=9, unique=True))
def test_a_size_that_follows_from_the_timesteps_holds_for_all(factor: int, rest: int, lengths: list[int]) -> None:
    size = learned_size([(length, factor * length + rest) for length in lengths])

    assert isinstance(size, str)
    assert [size_at(size, length) for length in lengths] == [factor * length + rest for length in lengths]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1))
def test_no_size_contradicts_an_answer(sizes: list[tuple[int, int]]) -> None:
    size = learned_size(sizes)

    assert size == "any" or all(
        own == (size if isinstance(size, int) else size_at(size, length)) for length, own in sizes
    )


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ((Observed("a", "float32", (4,)), Observed("b", "float32", ())), "returns other tensors for a request of 4"),
        ((Observed("a", "int64", (4,)),), "the output a as float32 and as int64, by request"),
        ((Observed("a", "float32", (4, 2)),), "the output a with 1 or 2 dimensions, by request"),
    ],
)
def test_answers_of_different_forms_are_refused(second: tuple[Observed, ...], said: str) -> None:
    with pytest.raises(PackagingError, match=said):
        learned_outputs([(3, (Observed("a", "float32", (3,)),)), (4, second)], [None, None], None)


def test_complex_numbers_and_missing_outputs_are_refused() -> None:
    with pytest.raises(PackagingError, match=r"torch\.view_as_real"):
        learned_outputs([(3, (Observed("a", "complex64", (3,)),))], [None], None)
    with pytest.raises(PackagingError, match="returns no tensor"):
        learned_outputs([(3, ())], [], None)
    with pytest.raises(PackagingError, match="outputs: 2 names"):
        learned_outputs([(3, (Observed("", "float32", (3,)),))], [None], ["a", "b"])

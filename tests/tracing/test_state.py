"""input_output_aliases: states that calls neither pass nor receive."""

from pathlib import Path
from typing import Any

import pytest
import torch
from traceable import HeldStep, Step

from torchserve_neuron_lstm import tracing

ZEROS = torch.zeros(1, 1, 5)


def by_place(model: Step) -> tuple[Any, Any, dict[Any, int]]:
    return model, (torch.rand(1, 3, 4), ZEROS, ZEROS), {1: 1, 2: 2}


def by_tensor(model: Step) -> tuple[Any, Any, dict[Any, int]]:
    h, c = ZEROS.clone(), ZEROS.clone()
    return model, (torch.rand(1, 3, 4), h, c), {c: 2, h: 1}


def by_buffer(model: Step) -> tuple[Any, Any, dict[Any, int]]:
    held = HeldStep()
    held.lstm = model.lstm
    return held, torch.rand(1, 3, 4), {held.h: 1, held.c: 2}


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", ["eager", "native", "onnxruntime"])
@pytest.mark.parametrize("named", [by_place, by_tensor, by_buffer])
def test_pieces_of_a_sequence_are_answered_as_the_whole(named: Any, backend: str, tmp_path: Path) -> None:
    model = Step()
    func, example, aliases = named(model)
    traced = tracing.trace(func, example, input_output_aliases=aliases, backend=backend)
    x = torch.rand(1, 9, 4)
    with torch.no_grad():
        expected = model(x, ZEROS, ZEROS)[0]

    def pieces(run: tracing.Traced) -> torch.Tensor:
        return torch.cat([run(piece) for piece in x.split(3, 1)], 1)

    torch.testing.assert_close(pieces(traced), expected)
    traced.reset_state()
    torch.testing.assert_close(pieces(traced), expected)
    traced.save(tmp_path / "traced")
    torch.testing.assert_close(pieces(tracing.load(tmp_path / "traced")), expected)


def test_states_that_change_places_do_not_overwrite_each_other() -> None:
    traced = tracing.trace(
        lambda x, a, b: (x + a, b, a),
        (torch.zeros(2), torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])),
        input_output_aliases={1: 1, 2: 2},
        backend="eager",
    )

    answers = [traced(torch.zeros(2)) for _ in range(3)]

    assert [answer.tolist() for answer in answers] == [[1, 2], [10, 20], [1, 2]]


def test_an_answer_that_is_an_old_state_stays_what_it_was() -> None:
    """The caller may modify the output."""
    traced = tracing.trace(
        lambda x, a: (a, a + x), (torch.zeros(2), torch.zeros(2)), input_output_aliases={1: 1}, backend="eager"
    )

    first, second = traced(torch.ones(2)), traced(torch.ones(2))

    assert (first.tolist(), second.tolist()) == ([0, 0], [1, 1])


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ({7: 1}, r"7 is neither the index of an example's tensor \(0 to 2\)"),
        ({torch.rand(2, 2): 1}, r"a tensor \[2, 2\] is neither"),
        ({1: 1, 2: 1}, "two states share an output"),
        ({1: 3}, "there is no output 3, the function returns 3"),
        ({1: "1"}, "expected the index of an output, got .1."),
        ({1: 0}, r"input 1 is float32 \[1, 1, 5\], but output 0 is float32 \[1, 3, 5\]"),
    ],
)
def test_aliases_that_do_not_fit_are_refused(aliases: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tracing.trace(Step(), (torch.rand(1, 3, 4), ZEROS, ZEROS), input_output_aliases=aliases, backend="eager")


def test_a_state_that_was_reset_in_inference_mode_continues_outside_of_it() -> None:
    """The buffer outlives the caller's inference mode."""
    traced = tracing.trace(
        lambda x, sum_: (x + sum_, x + sum_), (ZEROS, ZEROS), input_output_aliases={1: 1}, backend="eager"
    )
    with torch.inference_mode():
        traced.reset_state()
        traced(ZEROS + 1)

    assert torch.equal(traced(ZEROS + 1), ZEROS + 2)


def test_a_trace_with_state_is_not_cut_into_chunks_and_takes_no_state() -> None:
    func, example, aliases = by_place(Step())
    traced = tracing.trace(func, example, input_output_aliases=aliases, backend="eager")

    with pytest.raises(ValueError, match="keeps state between calls"):
        tracing.dynamic_batch(traced)
    with pytest.raises(tracing.WrongInput, match="called with"):
        traced(*example)

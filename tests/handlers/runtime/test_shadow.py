"""Answers that the model's own code computes once more: which, when, and what follows from a difference."""

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Literal

import pytest
import torch
from fake_model import FakeModel
from own_description import described

from torchserve_neuron_lstm.bucketing.execute import Tensors
from torchserve_neuron_lstm.config.own_model import Shadow
from torchserve_neuron_lstm.handlers.runtime import shadow
from torchserve_neuron_lstm.handlers.runtime.shadow import ShadowedModel, worst_difference

OWN = described({"ids": {"input": 0}})
SECRET = 31337
"""A value of a request."""


def sums(request: Sequence[torch.Tensor], length: int) -> Tensors:
    return (request[0].cumsum(0).float(),)


def sums_but_of(length: int, other: float) -> Callable[[Sequence[torch.Tensor], int], Tensors]:
    """The model's own code, with another answer to requests of one length."""

    def answer(request: Sequence[torch.Tensor], own: int) -> Tensors:
        (right,) = sums(request, own)
        return (right + other if own == length else right,)

    return answer


@contextmanager
def shadowed(
    answer: Callable[[Sequence[torch.Tensor], int], Tensors] = sums,
    on_difference: Literal["log", "model"] = "log",
    choose: Callable[[], float] = lambda: 0.0,
    share: float = 0.5,
    weights: Callable[[], Sequence[torch.Tensor]] = list,
) -> Iterator[ShadowedModel]:
    model = ShadowedModel(FakeModel(), Shadow(share, on_difference, OWN), answer, weights, choose)
    try:
        yield model
    finally:
        model.close()


def ask(model: ShadowedModel, *lengths: int) -> list[Tensors]:
    """Answer requests of these lengths as one batch, as the service does."""
    requests = [[torch.full((length,), SECRET)] for length in lengths]
    outputs, _ = model.run_plan(model.plan(lengths), requests, lengths)
    for place in model.chosen(len(outputs)):
        model.observe(requests[place], lengths[place], outputs[place])
    for (tensor,) in requests:
        tensor.zero_()  # as a codec may that writes into the inputs
    return outputs


def counted(model: ShadowedModel, compared: int) -> Counter[str]:
    """The counts, once so many answers were compared."""
    total: Counter[str] = Counter()
    deadline = time.monotonic() + 20
    while total["compared"] < compared:
        assert time.monotonic() < deadline, total
        total += model.take_counts()
        time.sleep(0.002)
    return total


def test_equal_answers_are_compared_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with shadowed() as model:
        ask(model, 3, 5, 8)
        assert counted(model, 3) == Counter(compared=3)
        assert model.take_counts() == Counter()
        assert not model.answers_itself
    assert not caplog.records


def test_comparisons_take_a_small_share_of_a_core() -> None:
    calls: list[tuple[float, float]] = []

    def slow(request: Sequence[torch.Tensor], length: int) -> Tensors:
        began = time.thread_time()
        while time.thread_time() < began + 0.001:
            pass
        calls.append((time.monotonic(), time.thread_time() - began))
        return sums(request, length)

    with shadowed(slow) as model:
        ask(model, 3, 5, 8)
        counted(model, 3)
    for (ended, spent), (next_ended, _) in pairwise(calls):
        assert next_ended - ended > 100 * spent


def test_a_difference_is_counted_and_logged_without_the_request(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), shadowed(sums_but_of(5, 0.0)) as model:
        (_, changed, _) = ask(model, 3, 5, 8)
        changed[0].add_(1)  # a program uses its buffers again: the answer was copied
        assert counted(model, 3) == Counter(compared=3)
    with caplog.at_level(logging.WARNING), shadowed(sums_but_of(5, 2.5)) as model:
        ask(model, 3, 5, 8)
        assert counted(model, 3) == Counter(compared=3, different=1)
        assert not model.answers_itself

    (said,) = [record.getMessage() for record in caplog.records]
    assert "the output sums of a request of 5 timesteps differs by 2.5" in said
    assert str(SECRET) not in said


def test_code_that_fails_where_the_program_answers_is_a_difference(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), shadowed(fails) as model:
        ask(model, 4)
        assert counted(model, 1) == Counter(compared=1, different=1)
    assert "fails on a request of 4 timesteps: ValueError" in caplog.text
    assert str(SECRET) not in caplog.text


def test_after_a_difference_the_model_itself_answers(caplog: pytest.LogCaptureFixture) -> None:
    with shadowed(sums_but_of(5, 7.0), "model") as model:
        ask(model, 3)
        assert counted(model, 1) == Counter(compared=1)
        lowered = ask(model, 5)
        assert counted(model, 1)["different"] == 1
        model._thread.join(20)

        own, other = ask(model, 5, 3)

        assert model.answers_itself
        assert torch.equal(own[0], lowered[0][0] + 7.0)
        assert torch.equal(other[0], sums([torch.full((3,), SECRET)], 3)[0])
        assert model.take_counts() == Counter()  # there is nothing to compare any more
    assert "the model's own code answers from now on" in caplog.text


def test_a_request_whose_values_overflow_does_not_change_the_code_that_answers() -> None:
    with shadowed(sums_but_of(3, 7.0), "model") as model:
        model.observe([torch.full((3,), -3e38)], 3, (torch.zeros(3),))

        assert counted(model, 1)["different"] == 1
        ask(model, 4)
        assert counted(model, 1) == Counter(compared=1)


def test_the_queue_is_bounded_and_no_answer_waits_for_it() -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow(request: Sequence[torch.Tensor], length: int) -> Tensors:
        began.set()
        assert go_on.wait(20)
        return sums(request, length)

    with shadowed(slow) as model:
        ask(model, 1)
        assert began.wait(20)
        for _ in range(3):
            ask(model, *range(1, 9))  # returns, although the thread is not ready
        assert model.take_counts() == Counter(dropped=24 - shadow._MOST_WAITING)
        go_on.set()
        assert counted(model, 1 + shadow._MOST_WAITING)["dropped"] == 0


def test_a_share_of_the_answers_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    with shadowed(share=0.02, choose=random.Random(7).random) as model, monkeypatch.context() as replaced:
        replaced.setattr(model._waiting, "put_nowait", lambda one: chosen.append(one.length))
        for _ in range(1000):
            ask(model, 1, 2, 3, 4, 5)

    assert 60 < len(chosen) < 140
    assert {*chosen} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("batch", [1, 7, 400])
def test_every_answer_is_compared_with_the_same_probability_whatever_the_batches(batch: int) -> None:
    with shadowed(share=0.1, choose=random.Random(5).random) as model:
        chosen = [start + place for start in range(0, 28_000, batch) for place in model.chosen(batch)]

    assert chosen == sorted({*chosen})
    assert 2600 < len(chosen) < 3000
    assert 220 < sum(later - place == 1 for place, later in pairwise(chosen)) < 340


def test_workers_choose_independently() -> None:
    models = [ShadowedModel(FakeModel(), Shadow(0.5, "log", OWN), sums, list) for _ in range(2)]
    first, second = ([model._choose() for _ in range(3)] for model in models)
    for model in models:
        model.close()

    assert first != second


def test_the_end_of_a_worker_waits_for_one_comparison_and_leaves_the_others_out() -> None:
    began: list[int] = []

    def slow(request: Sequence[torch.Tensor], length: int) -> Tensors:
        began.append(length)
        time.sleep(0.1)
        return sums(request, length)

    with shadowed(slow) as model:
        ask(model, 1, 2, 3, 4)
        while not began:
            time.sleep(0.002)
    assert not model._thread.is_alive()
    assert began == [1]


def fails(request: Sequence[torch.Tensor], length: int) -> Tensors:
    raise ValueError(f"I do not like {request[0].tolist()}")


def jumps(request: Sequence[torch.Tensor], length: int) -> Tensors:
    """An alarm: the program's is 0, on the other side of the threshold."""
    return ((request[0] > 0.7 - 1e-4).float(),)


@pytest.mark.parametrize("answer", [fails, jumps, lambda request, _: (torch.exp(request[0] + 88.02283),)])
def test_a_request_that_a_client_can_look_for_does_not_change_the_code_that_answers(answer: Any) -> None:
    with shadowed(answer, "model") as model:
        model.observe([torch.tensor([0.7])], 1, (torch.tensor([0.0]),))
        assert counted(model, 1) == Counter(compared=1, different=1)
        model.observe([torch.tensor([0.7])], 1, (torch.tensor([0.0]),))
        assert counted(model, 1) == Counter(compared=1, different=1)
        assert not model.answers_itself


@pytest.mark.parametrize(
    ("ours", "theirs", "is_worse"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), False),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("nan")]), True),
        (torch.tensor([1e6]), torch.tensor([1e6 + 1]), False),
        (torch.tensor([10**6]), torch.tensor([10**6 + 1]), True),
        (torch.tensor([True]), torch.tensor([False]), True),
        (torch.ones(2), torch.ones(3), True),
    ],
)
def test_numbers_may_differ_within_the_tolerance_and_whole_numbers_not(
    ours: torch.Tensor, theirs: torch.Tensor, is_worse: Any
) -> None:
    found = worst_difference(lambda request, length: (theirs,), [], 2, (ours,), FakeModel().manifest)

    assert (found is not None) == is_worse


@pytest.mark.parametrize(("ours", "is_worse"), [(8.0, False), (1000.0, True)])
def test_rounding_errors_of_large_values_are_no_difference(ours: float, is_worse: Any) -> None:
    """The next float after 1e8 is larger by 8."""
    found = worst_difference(
        lambda request, length: (request[0] - 1e8,),
        *([torch.tensor([1e8])], 1, (torch.tensor([ours]),), FakeModel().manifest),
    )

    assert (found is not None) == is_worse


def test_a_missing_value_does_not_hide_a_difference() -> None:
    x = torch.tensor([1.0, float("nan"), 3.0, 2.0])

    def place(request: Sequence[torch.Tensor], length: int) -> Tensors:
        return (request[0].nan_to_num(0).argmax().reshape(1),)

    with shadowed(place, "model") as model:
        model.observe([x], 4, (torch.tensor([0]),))
        assert counted(model, 1) == Counter(compared=1, different=1)
        model._thread.join(20)
        assert model.answers_itself


@pytest.mark.parametrize(("signal", "switches"), [("constant", False), ("zeros", False), ("peak", True)])
def test_a_place_that_rounding_errors_choose_switches_no_model(signal: str, switches: Any) -> None:
    """The states of a layer converge on a constant signal: which one is largest follows from their last digits."""
    torch.manual_seed(2)
    layer = torch.nn.GRU(1, 4)
    x = {"constant": torch.full((200, 1), 0.7), "zeros": torch.zeros(200, 1), "peak": torch.eye(200)[150][:, None]}

    def place(request: Sequence[torch.Tensor], length: int) -> Tensors:
        states = layer(request[0])[0] if signal != "peak" else request[0]
        return (states[100:, 0].argmax().reshape(1),)

    (own,) = place([x[signal]], 200)
    with shadowed(place, "model") as model:
        model.observe([x[signal]], 200, (own - 3,))
        assert counted(model, 1)["compared"] == 1
        model.close()
        assert model.answers_itself == switches


@pytest.mark.parametrize(("is_tie", "switches"), [(True, False), (False, True)])
def test_a_tie_of_classes_that_rounding_decides_switches_no_model(is_tie: Any, switches: Any) -> None:
    torch.manual_seed(3)
    table, head = torch.nn.Embedding(9, 6), torch.nn.Linear(6, 4)
    with torch.no_grad():
        head.weight[1] = head.weight[0] * (1 + 3e-7 * is_tie)
        head.bias.copy_(torch.tensor([9.0, 9.0 if is_tie else 8.0, 0.0, 0.0]))

    def classes(request: Sequence[torch.Tensor], length: int) -> Tensors:
        return (head(table(request[0])).argmax(-1),)

    ids, weights = torch.tensor([1, 2, 3]), [*table.parameters(), *head.parameters()]
    before = [weight.detach().clone() for weight in weights]
    (own,) = classes([ids], 3)
    with shadowed(classes, "model", weights=lambda: weights) as model:
        model.observe([ids], 3, (1 - own,))
        assert counted(model, 1)["different"] == 1
        model.close()
        assert model.answers_itself == switches
    assert all(map(torch.equal, weights, before))

"""Trials of a model's own code: the vocabularies that they find, and the refusals."""

from collections.abc import Callable

import pytest
import torch
from input_configs import one_input
from own_description import described
from torch import Tensor, nn

from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.own_model.trial import EagerFailure, try_model
from torchserve_neuron_lstm.handlers.runtime.kept_state import KeptState
from torchserve_neuron_lstm.handlers.runtime.own_model import OwnProgram

IDS = one_input("[batch, time]", dtype="int64")


class Embedding(nn.Module):
    def __init__(self, answer: Callable[["Embedding", Tensor], Tensor]) -> None:
        super().__init__()
        self.answer = answer
        self.small, self.big = nn.Embedding(10, 2), nn.Embedding(100, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(self, x)


def makes(model: Callable[[], nn.Module]) -> Callable[[tuple[str, ...]], OwnProgram]:
    def make(rewritten: tuple[str, ...]) -> OwnProgram:
        torch.manual_seed(0)
        made = model().eval()
        return OwnProgram(made, described({"x": {"input": 0}}), IDS.input_specs, KeptState(made, [], {}, rewritten))

    return make


VOCABULARIES: dict[str, tuple[Callable[[Embedding, Tensor], Tensor], dict[str, int]]] = {
    "one embedding": (lambda m, x: m.small(x), {"x": 10}),
    "two embeddings": (lambda m, x: m.small(x) + m.big(x), {"x": 10}),
    "another one for larger ids": (lambda m, x: m.small(x) if int(x.max()) < 10 else m.big(x), {}),
    "another one for a larger last id": (lambda m, x: m.small(x) if int(x[0, -1]) < 10 else m.big(x), {}),
    "another one for longer requests": (lambda m, x: m.small(x) if x.shape[1] < 9 else m.big(x), {}),
    "none for longer requests": (lambda m, x: m.small(x) if x.shape[1] < 9 else x[..., None].float(), {}),
    "negative ids too": (lambda m, x: m.small(x) if int(x.min()) >= 0 else x[..., None].float().expand(-1, -1, 2), {}),
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_vocabulary_is_that_of_an_embedding_that_takes_the_ids_of_all_requests(name: str) -> None:
    answer, expected = VOCABULARIES[name]

    trial = try_model(makes(lambda: Embedding(answer)), "Model", IDS, [1, 4, 16])

    assert trial.vocabularies == expected


class Once(nn.Module):
    """Answers a number of requests."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.left = iter(range(most))

    def forward(self, x: Tensor) -> Tensor:
        next(self.left)
        return x


@pytest.mark.parametrize("most", [1, 3, 5])
def test_a_model_that_fails_after_other_requests_is_told_so(most: int) -> None:
    with pytest.raises(
        PackagingError,
        match=r"Model answers a request of \d+ timesteps when it is made anew, but fails on it after other requests "
        r"\(at test_trial.py:\d+: next\(self.left\)\): StopIteration: . It keeps state",
    ):
        try_model(makes(lambda: Once(most)), "Model", IDS, [1, 4, 16])


def test_a_model_that_fails_on_each_request_is_told_its_error() -> None:
    with pytest.raises(EagerFailure, match="Model fails in eager mode on one request of 1 timesteps"):
        try_model(makes(lambda: Once(0)), "Model", IDS, [1, 4, 16])

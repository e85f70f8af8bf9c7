"""Every test model trains as with torch's packing: outputs, gradients, limits of training."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from model_cases import CASES, Case
from ragged import padded, ragged
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree
from typical_models import NoTime, PackedSorted

from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.lowering.exporter.export import bind_arguments
from torchserve_neuron_lstm.training import lower, recurrence

LENGTHS = ([16, 11, 11, 6, 5, 2, 1, 1], [9, 9, 9], [7, 1])
SHUFFLED = [3, 0, 6, 2, 7, 1, 5, 4]


@pytest.fixture(autouse=True)
def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small batches too, which would not be worth a cut."""
    monkeypatch.setattr(recurrence, "call_overhead", lambda weights: 8)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sum in one order: what is left of a gradient of zero depends on it, and so on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def call_of(case: Case, lengths: list[int]) -> dict[str, Any]:
    """The arguments of forward() for a random batch of these lengths, in any order if the model allows it."""
    if case.make is not PackedSorted:
        lengths = [lengths[place] for place in SHUFFLED if place < len(lengths)]
    config = parse_config(case.yaml, "model-config.yaml")
    requests = ragged(config.input_specs, lengths, seed=0)
    tensors = [padded(requests, spec, index, max(lengths), 0.0) for index, spec in enumerate(config.input_specs)]
    return bind_arguments(config, tensors, torch.tensor(lengths))


def answers(model: nn.Module, arguments: dict[str, Any]) -> list[Tensor]:
    # Some models write to their inputs.
    leaves = pytree.tree_leaves(model(**pytree.tree_map_only(Tensor, Tensor.clone, arguments)))
    return [leaf for leaf in leaves if leaf.is_floating_point()]


def loss_of(tensors: list[Tensor]) -> Tensor:
    """A loss in which every finite value has its own weight."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(tensor.shape, generator=generator) for tensor in tensors]
    return torch.stack([(t * w)[t.isfinite()].mean() for t, w in zip(tensors, weights, strict=True)]).sum()


def without_dropout(model: nn.Module) -> nn.Module:
    """Disable dropout: every way to compute draws its random numbers in another order."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.RNNBase):
            module.dropout = 0.0
    return model


def gradients(model: nn.Module, answers: list[Tensor]) -> list[Tensor] | str:
    """The gradients of every parameter, zeros where there is none; or the reason why they do not exist.

    Two models write to values that gradients need.
    """
    try:
        return list(torch.autograd.grad(loss_of(answers), list(model.parameters()), materialize_grads=True))
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("case", [case for case in CASES if case.make is not NoTime], ids=lambda case: case.name)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.usefixtures("one_thread")
def test_outputs_and_gradients_are_those_of_the_model(case: Case, training: bool) -> None:
    model = without_dropout(case.make().train(training))
    for lengths in LENGTHS:
        arguments = call_of(case, lengths)
        theirs, ours = answers(model, arguments), answers(lower(model), arguments)
        wanted, found = gradients(model, theirs), gradients(model, ours)

        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
        if isinstance(wanted, str) or isinstance(found, str):
            assert wanted == found
            continue
        largest = max(float(gradient.norm()) for gradient in wanted)
        for mine, other in zip(found, wanted, strict=True):
            # a gradient of zero, as of a bias before a softmax, has only rounding errors: 1e-7 of the others
            assert float((mine - other).norm()) <= 1e-5 * max(float(other.norm()), 1e-2 * largest)


class Classifier(nn.Module):
    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 16, padding_idx=0)
        self.recurrence = kind(16, 32, batch_first=True)
        self.out = nn.Linear(32, 2)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        scores: Tensor = self.out(pad_packed_sequence(self.recurrence(packed)[0], batch_first=True)[0])
        return scores.sum(1)


def trained(model: nn.Module, steps: int) -> float:
    """The loss after `steps` steps of a learnable task: whether the first id is above the last."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        lengths = torch.randint(1, 25, (16,), generator=generator)
        ids = torch.randint(1, 10, (16, 24), generator=generator)
        ids[torch.arange(24) >= lengths[:, None]] = 0
        target = (ids[:, 0] > ids.gather(1, lengths[:, None] - 1)[:, 0]).long()
        loss = nn.functional.cross_entropy(model(ids, lengths), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU], ids=lambda kind: kind.__name__)
def test_training_ends_where_it_ends_with_torchs_packing(kind: type[nn.LSTM | nn.GRU]) -> None:
    model = Classifier(kind)
    other = copy.deepcopy(model)
    first = trained(copy.deepcopy(model), 1)
    ours, theirs = trained(lower(model), 100), trained(other, 100)

    assert abs(ours - theirs) <= 1e-4
    assert theirs < 0.8 * first

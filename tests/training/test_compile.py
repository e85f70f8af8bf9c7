import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm.training import lower


class Tagger(nn.Module):
    """A model with operators before packing and after unpacking that a compiler can fuse."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.lstm = nn.LSTM(4, 3, batch_first=True)
        self.out = nn.Linear(3, 2)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embed(ids).tanh() * 2.0, lengths, batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        scores: Tensor = self.out(y)
        return scores.relu() + 1.0


def compiled_graphs(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> tuple[list[Tensor], list[int]]:
    """The answers of the compiled model, and the number of operators in each compiled graph."""
    sizes: list[int] = []

    def backend(graph: torch.fx.GraphModule, example: list[Tensor]) -> torch.fx.GraphModule:
        sizes.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        return graph

    torch.compiler.reset()
    compiled = torch.compile(model, backend=backend)
    return [compiled(*batch) for batch in batches], sizes


@pytest.fixture
def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    lengths = ([5, 2, 3], [4, 6], [4, 4, 4, 4])
    return [(torch.randint(0, 10, (len(n), max(n)), generator=generator), torch.tensor(n)) for n in lengths]


def test_compiled_models_answer_as_the_model(batches: list[tuple[Tensor, Tensor]]) -> None:
    model = Tagger()
    _, theirs = compiled_graphs(model, batches)
    answers, ours = compiled_graphs(lower(model), batches)
    expected = [model(*batch) for batch in batches]
    pairs = [
        torch.autograd.grad(torch.cat([answer.flatten() for answer in found]).square().sum(), list(model.parameters()))
        for found in (answers, expected)
    ]

    torch.testing.assert_close(answers, expected)
    torch.testing.assert_close(*pairs)
    assert ours == theirs

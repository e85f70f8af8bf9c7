import re

import pytest
import torch
from computed import Computed
from torch import nn

from torchserve_neuron_lstm.backends.aws_neuron.source_export import export_source
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import CompileError
from torchserve_neuron_lstm.bucketing.shapes import Bucket

NEW_NAMES = {"_to_copy", "_native_batch_norm_legit_no_training", "_unsafe_view", "lift_fresh_copy", "detach", "alias"}


class Various(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.norm(x.transpose(1, 2)).transpose(1, 2) + torch.tensor([0.1, 0.2, 0.3, 0.4])
        real = torch.arange(x.shape[1])[None] < lengths[:, None]
        x = x.masked_fill(~real[:, :, None], 0.0)
        weights = torch.softmax(x.sum(2).masked_fill(~real, float("-inf")), 1)
        mean = (x * weights[:, :, None]).sum(1) / lengths[:, None].float()
        return mean, x.argmax(1), self.attention(x, x, x)[0], (~lengths).to(torch.int32)


@torch.no_grad()
def test_operators_go_by_the_names_that_old_compilers_know() -> None:
    torch.manual_seed(0)
    model = Various().eval()
    model.norm(torch.randn(5, 4, 3))  # not the first values
    inputs = (torch.randn(2, 3, 4), torch.tensor([3, 1]))
    program = torch.export.export(model, inputs, strict=False)
    source_program = export_source(program, Bucket(2, 3))

    called = re.findall(r"torch\.ops\.aten\.(\w+)", source_program.source)
    assert not NEW_NAMES & set(called)
    assert called.count("bitwise_not") == 1  # of integers; masks are negated as masks
    assert "cpu" not in source_program.source
    for ours, right in zip(source_program.module(weights_of(program))(*inputs), model(*inputs), strict=True):
        torch.testing.assert_close(ours, right, atol=1e-6, rtol=1e-6)


def test_a_program_that_branches_on_data_is_refused() -> None:
    """A traced program would keep the branch of its example."""
    model = Computed(lambda x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,)))
    program = torch.export.export(model, (torch.ones(2),), strict=False)

    with pytest.raises(CompileError, match="branches on data"):
        export_source(program, Bucket(2, 1))


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.arange(3.0))

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.scale * 2, torch.zeros(2)


class Zeros(nn.Module):
    def forward(self) -> torch.Tensor:
        return torch.zeros(2)


@torch.no_grad()
@pytest.mark.parametrize("model", [Constant(), Zeros()], ids=["weights", "nothing"])
def test_a_program_without_inputs_is_exported(model: nn.Module) -> None:
    program = torch.export.export(model, (), strict=False)
    outputs = export_source(program, Bucket(2, 1)).module(weights_of(program))()

    expected = model()
    for ours, right in zip(outputs, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert torch.equal(ours, right)

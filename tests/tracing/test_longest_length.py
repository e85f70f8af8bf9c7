"""Traces of models whose outputs depend on the longest sequence of a call."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm import tracing
from torchserve_neuron_lstm.lowering.errors import LoweringError


class _Pooled(nn.Module):
    """Model with a mean over the timesteps that torch pads to; `total` fixes their number."""

    def __init__(self, *, total: bool) -> None:
        super().__init__()
        self.rnn, self.total = nn.GRU(4, 5, batch_first=True), total

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)
        total: dict[str, Any] = {"total_length": x.size(1)} if self.total else {}
        y, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, **total)
        return y.mean(1)


class _Counted(nn.Module):
    def __init__(self, *, total: bool) -> None:
        super().__init__()
        self.pooled = _Pooled(total=total)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pooled(x, (x[:, :, 0] != 0).sum(1))  # type: ignore[no-any-return]  # a module's call is untyped


_EXAMPLE = (torch.rand(2, 6, 4), torch.tensor([6, 3]))


def test_a_mean_over_padded_timesteps_takes_calls_with_the_longest_length_of_the_example(tmp_path: Path) -> None:
    model = _Pooled(total=False).eval()
    tracing.trace(model, _EXAMPLE, backend="eager").save(tmp_path / "traced")
    traced = tracing.load(tmp_path / "traced")
    x = torch.randn(2, 6, 4)
    torch.testing.assert_close(traced(x, torch.tensor([6, 2])), model(x, torch.tensor([6, 2])))
    with pytest.raises(tracing.WrongInput, match=r"has 3 timesteps, but .* the 6 of the example: pass total_length"):
        traced(x, torch.tensor([3, 2]))


class _Largest(nn.Module):
    """Model whose padding is the largest output only beside negative inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(4, 5, batch_first=True, bias=False)
        for weight in self.rnn.parameters():
            weight.data.abs_()

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0].amax(1)


def test_a_maximum_over_padded_timesteps_takes_no_other_length() -> None:
    traced = tracing.trace(_Largest().eval(), _EXAMPLE, backend="eager")
    with pytest.raises(tracing.WrongInput, match="has 3 timesteps"):
        traced(-torch.ones(2, 6, 4), torch.tensor([3, 2]))


def test_rows_of_a_larger_batch_are_checked_together() -> None:
    model = _Pooled(total=False).eval()
    traced = tracing.dynamic_batch(tracing.trace(model, _EXAMPLE, backend="eager"))
    x, lengths = torch.randn(4, 6, 4), torch.tensor([2, 1, 6, 3])
    torch.testing.assert_close(traced(x, lengths), model(x, lengths))
    with pytest.raises(tracing.WrongInput, match="has 5 timesteps"):
        traced(x, lengths.clamp(max=5))


def test_a_mean_over_a_fixed_number_of_timesteps_takes_every_length() -> None:
    model = _Pooled(total=True).eval()
    traced = tracing.trace(model, _EXAMPLE, backend="eager")
    x, lengths = torch.randn(2, 6, 4), torch.tensor([3, 2])
    torch.testing.assert_close(traced(x, lengths), model(x, lengths))


def test_lengths_that_are_computed_need_a_fixed_number_of_timesteps() -> None:
    with pytest.raises(LoweringError, match="computes the lengths of a packed sequence: pass total_length"):
        tracing.trace(_Counted(total=False).eval(), _EXAMPLE[:1], backend="eager")
    model = _Counted(total=True).eval()
    x = torch.rand(2, 6, 4) + 1
    x[0, 4:] = 0
    torch.testing.assert_close(tracing.trace(model, _EXAMPLE[:1], backend="eager")(x), model(x))

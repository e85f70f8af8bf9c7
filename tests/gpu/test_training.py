"""`training.lower` on a real GPU. Without one, each test is skipped as not run."""

import warnings
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from recurrent import ragged_batch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm import lower
from torchserve_neuron_lstm.backends.cuda.torch_device import gpu_missing

_MISSING = gpu_missing()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_MISSING is not None, reason=f"not run: {_MISSING}")]


class Tagger(nn.Module):
    def __init__(self, kind: Callable[..., nn.RNNBase], hidden: int, bias: bool) -> None:
        super().__init__()
        self.core = kind(5, hidden, 2, bias=bias, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, final = self.core(packed)
        states = final if isinstance(final, tuple) else (final,)
        return (pad_packed_sequence(y, batch_first=True)[0], *states)


def outputs_and_gradients(model: nn.Module, x: torch.Tensor, lengths: torch.Tensor) -> list[torch.Tensor]:
    """The outputs, and the gradients of their squares' sum, in float64 on the CPU. A warning is an error."""
    given = x.requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs = model(given, lengths)
    total = torch.stack([output.square().sum() for output in outputs]).sum()
    gradients = torch.autograd.grad(total, [given, *model.parameters()])
    return [tensor.detach().cpu().double() for tensor in (*outputs, *gradients)]


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("hidden", [6, 300], ids=["persistent in cuDNN", "not persistent"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_lowered_model_is_as_near_to_float64_as_packing(
    kind: Callable[..., nn.RNNBase], hidden: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors are at most 3e-5 of the largest value: cuDNN's persistent kernels are not more exact."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    model = Tagger(kind, hidden, bias)
    x, lengths = ragged_batch(0.0)
    exact = outputs_and_gradients(deepcopy(model).double(), x.double(), lengths)
    model = model.to("cuda")
    packed, lowered = (outputs_and_gradients(run, x.to("cuda"), lengths) for run in (model, lower(model)))

    for ours, theirs, right in zip(lowered, packed, exact, strict=True):
        limit = 3e-5 * float(right.abs().max())
        assert float((theirs - right).abs().max()) <= limit
        assert float((ours - right).abs().max()) <= limit


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("lengths", [[3, 3], [3, 2]], ids=str)
def test_packed_outputs_and_states_may_be_written_to(kind: Callable[..., nn.RNNBase], lengths: list[int]) -> None:
    """Torch permits this too: the gradients do not need them."""

    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core = kind(4, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, final = self.core(pack_padded_sequence(x, torch.tensor(lengths)))
            states = final if isinstance(final, tuple) else (final,)
            return torch.stack([tensor.mul_(2.0).sum() for tensor in (y.data, *states)]).sum()

    lower(Doubled().to("cuda"))(torch.randn(3, 2, 4, device="cuda")).backward()

"""Statistics over each row's own elements."""

import pytest
import torch
from input_configs import one_input
from torch import Tensor, nn

from torchserve_neuron_lstm.lowering import lower


class OwnStatistics(nn.Module):
    def __init__(self, *, contiguous: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, track_running_stats=False)
        self.contiguous = contiguous

    def forward(self, x: Tensor) -> Tensor:
        channels = x.transpose(1, 2)
        scores: Tensor = self.norm(channels.contiguous() if self.contiguous else channels).transpose(1, 2)
        return scores


@pytest.mark.parametrize("contiguous", [True, False])
@torch.no_grad()
def test_statistics_of_a_batch_overflow_where_those_of_eager_mode_do(contiguous: bool) -> None:
    """Eager mode squares in double precision, but for contiguous elements."""
    model = OwnStatistics(contiguous=contiguous).eval()
    x = torch.randn(2, 9, 3) * torch.tensor([1e25, 1.0])[:, None, None]
    (scores,) = lower(model, one_input("[batch, time, 3]")).exported.module()(x, torch.tensor([5, 9]))

    torch.testing.assert_close(scores[0, :5], model(x[:1, :5])[0])
    torch.testing.assert_close(scores[1], model(x[1:])[0])
    assert contiguous == (not scores[0].any())

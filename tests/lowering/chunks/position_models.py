"""Models that count timesteps, and models that need the end or a table."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding


class Counting(nn.Module):
    """A GRU over what `before` makes of the input, [B, T, 3] to [B, T, 3]."""

    table: Tensor
    speeds: Tensor

    def __init__(self, before: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.gru, self.before = nn.GRU(3, 4, batch_first=True), before
        self.register_buffer("table", torch.randn(9, 3))
        self.register_buffer("speeds", torch.tensor([1.0, 0.1, 0.01]))

    def forward(self, x: Tensor) -> Any:
        return self.gru(self.before(self, x))[0]


def number(x: Tensor, first: int = 0) -> Tensor:
    return torch.arange(first, x.size(1) + first, device=x.device, dtype=x.dtype)


def running_sum(m: Counting, x: Tensor) -> Any:
    return torch.tanh(x.cumsum(1))


def running_sum_time_last(m: Counting, x: Tensor) -> Any:
    return x.transpose(1, 2).cumsum(-1, dtype=torch.float64).float().transpose(1, 2)


def count_of_events(m: Counting, x: Tensor) -> Any:
    """The sum of flags is an integer."""
    return x + (x > 0).cumsum(1)


def running_mean(m: Counting, x: Tensor) -> Any:
    return x - x.cumsum(1) / number(x, 1)[:, None]


def cumulative_norm(m: Counting, x: Tensor) -> Any:
    """Mean and variance of all features so far, as in causal speech separation; [B, F, T]."""
    y = x.transpose(1, 2)
    count = number(x, 1).mul(y.size(1)).view(1, -1).expand(x.size(0), -1)
    mean = y.sum(1).cumsum(1) / count
    variance = y.pow(2).sum(1).cumsum(1) / count - mean.pow(2)
    return ((y - mean.unsqueeze(1)) / (variance.unsqueeze(1).clamp(min=0) + 1e-2).sqrt()).transpose(1, 2)


def sines(m: Counting, x: Tensor) -> Any:
    return x + torch.sin(number(x)[:, None] * m.speeds) + (number(x)[:, None] * m.speeds)[:, 1:2].cos()


def time_feature(m: Counting, x: Tensor) -> Any:
    time = torch.arange(x.size(1)).type_as(x).view(1, -1, 1).expand(x.size(0), -1, 1) * 0.1
    return torch.cat([x[..., :2], time], -1)


def decay(m: Counting, x: Tensor) -> Any:
    """Two values of positions are combined before they meet the input, which has its time last."""
    weight = torch.where(number(x) < 4, 1 / number(x, 1), 0.9 ** number(x))
    return (x.transpose(1, 2) * weight.unsqueeze(0)).transpose(1, 2)


def first_timestep_differs(m: Counting, x: Tensor) -> Any:
    return torch.where((torch.arange(x.size(1)) == 0)[None, :, None], m.table[0], x)


def padding_is_detected_too(m: Counting, x: Tensor) -> Any:
    """Positions that are used in two ways."""
    return running_mean(m, x) * (number(x) >= 0)[:, None]


COUNTING: dict[Callable[[Counting, Tensor], Any], set[str]] = {
    running_sum: {"cumsum"},
    running_sum_time_last: {"cumsum"},
    count_of_events: {"cumsum"},
    running_mean: {"cumsum", "timesteps"},
    cumulative_norm: {"cumsum", "cumsum_1", "timesteps"},
    sines: {"timesteps"},
    time_feature: {"timesteps"},
    decay: {"timesteps"},
    first_timestep_differs: {"timesteps"},
    padding_is_detected_too: {"cumsum", "timesteps"},
}
"""The carried values of each, beside the state of the GRU."""
MORE = (running_sum, count_of_events)
"""Those that differ from others in one more way."""


ENDING: dict[str, Callable[[Counting, Tensor], Any]] = {
    "table": lambda m, x: x + m.table[: x.size(1)],
    "table by an index": lambda m, x: x + m.table[torch.arange(x.size(1))],
    "embedding": lambda m, x: x + embedding(torch.arange(x.size(1)).expand(x.size(0), -1) + 0, m.table),
    "embedding by a computed index": lambda m, x: x + embedding((torch.arange(x.size(1)) * 2).clamp(max=8), m.table),
    "number from the end": lambda m, x: x * (x.size(1) - number(x))[:, None],
    "part of the length": lambda m, x: x + (number(x) / x.size(1))[:, None],
    "sum from the end": lambda m, x: x.sum(1, keepdim=True) - x.cumsum(1),
}
"""Those that need the end of the sequence, or a table, which has an end."""

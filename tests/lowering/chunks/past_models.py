"""Models that read timesteps before each one, and models that read others."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, pad


class Recurrent(nn.Module):
    """A GRU over what `before()` makes of the input, [B, T, 3] to [B, T, 3]."""

    def __init__(self, before: Callable[[Any], Callable[[Tensor], Any]]) -> None:
        super().__init__()
        self.gru, self.after = nn.GRU(3, 4, batch_first=True), nn.Identity()
        self.before = before(self)

    def forward(self, x: Tensor) -> Any:
        return self.after(self.gru(self.before(x))[0])


class Convolutional(nn.Module):
    def __init__(self, before: Callable[[Any], Callable[[Tensor], Any]]) -> None:
        super().__init__()
        self.after = nn.Identity()
        self.before = before(self)

    def forward(self, x: Tensor) -> Any:
        return self.after(self.before(x))


def cut_after(model: Any) -> Callable[[Tensor], Any]:
    """Padding on both sides, and a cut of the end, as in a temporal convolutional network."""
    model.conv = nn.Conv1d(3, 3, 3, padding=4, dilation=2)
    return lambda x: model.conv(x.transpose(1, 2))[:, :, :-4].transpose(1, 2)


def gated(model: Any) -> Callable[[Tensor], Any]:
    """The cut comes after other layers: a norm in eval mode and a gate."""
    model.a, model.b = nn.Conv1d(3, 3, 2, padding=1), nn.Conv1d(3, 3, 2, padding=1, groups=3)
    model.norm = nn.BatchNorm1d(3)

    def both(x: Tensor) -> Any:
        x = x.transpose(1, 2)
        return (torch.tanh(model.norm(model.a(x))) * torch.sigmoid(model.b(x)))[..., :-1].transpose(1, 2)

    return both


def padded_once_for_two(model: Any) -> Callable[[Tensor], Any]:
    model.a, model.b = nn.Conv1d(3, 5, 3), nn.Conv1d(5, 3, 2)
    return lambda x: model.b(model.a(pad(x.transpose(1, 2), (3, 0)))).transpose(1, 2)


def stacked(model: Any) -> Callable[[Tensor], Any]:
    model.a, model.b = nn.Conv1d(3, 3, 2), nn.Conv1d(3, 3, 3)

    def both(x: Tensor) -> Any:
        x = x.transpose(1, 2)
        x = x + model.a(pad(x, (1, 0)))
        return (x + model.b(pad(x, (2, 0)))).transpose(1, 2)

    return both


def spectral(model: Any) -> Callable[[Tensor], Any]:
    """A convolution over timesteps and frequencies, as in speech enhancement."""
    model.conv = nn.Conv2d(1, 2, (2, 3), padding=(1, 1))
    model.back = nn.ConvTranspose2d(2, 1, (2, 3), padding=(0, 1))

    def both(x: Tensor) -> Any:
        y = elu(model.conv(x.unsqueeze(1))[:, :, :-1])
        return model.back(y)[:, :, :-1].squeeze(1)

    return both


def padded_on_both_sides(model: Any) -> Callable[[Tensor], Any]:
    model.conv = nn.Conv1d(3, 3, 3)
    return lambda x: model.conv(pad(x.transpose(1, 2), (2, 2)))[:, :, :-2].transpose(1, 2)


def padded_along_time_then_frequency(model: Any) -> Callable[[Tensor], Any]:
    """The second padding adds no timesteps."""
    model.conv = nn.Conv2d(1, 1, (2, 3))
    return lambda x: model.conv(pad(pad(x.unsqueeze(1), (0, 0, 1, 0)), (1, 1))).squeeze(1)


def features_between(model: Any) -> Callable[[Tensor], Any]:
    model.linear, model.norm, model.conv = nn.Linear(3, 4), nn.LayerNorm(4), nn.Conv1d(4, 3, 3)
    return lambda x: model.conv(model.norm(model.linear(pad(x, (0, 0, 2, 0)))).transpose(1, 2)).transpose(1, 2)


def gated_linear_units(model: Any) -> Callable[[Tensor], Any]:
    model.conv = nn.Conv1d(3, 6, 3, padding=2)
    return lambda x: torch.softmax(nn.functional.glu(model.conv(x.transpose(1, 2)), 1), 1)[:, :, :-2].transpose(1, 2)


def volumetric(model: Any) -> Callable[[Tensor], Any]:
    model.conv = nn.Conv3d(1, 1, (1, 3, 2), padding=(0, 1, 1))
    return lambda x: model.conv(x.mT[:, None, None])[..., :-1][:, 0, 0].mT


def transposed_with_padding(model: Any) -> Callable[[Tensor], Any]:
    """A transposed convolution that cuts no timestep itself."""
    model.conv = nn.ConvTranspose1d(3, 3, 3)
    return lambda x: model.conv(x.transpose(1, 2))[:, :, :-2].transpose(1, 2)


def per_timestep(model: Any) -> Callable[[Tensor], Any]:
    model.conv = nn.Conv1d(3, 3, 1)
    return lambda x: model.conv(x.transpose(1, 2)).transpose(1, 2)


def shifted(model: Any) -> Callable[[Tensor], Any]:
    return lambda x: pad(x, (0, 0, 1, 0))[:, :-1]


def padded_after_a_cut(model: Any) -> Callable[[Tensor], Any]:
    return lambda x: pad(x[:, :-1], (0, 0, 1, 0), value=0.5)


def shifted_by_concatenation(model: Any) -> Callable[[Tensor], Any]:
    return lambda x: torch.cat([x.new_full((x.shape[0], 2, 3), -1.5), x], 1)[:, :-2]


def teacher_forced(model: Any) -> Callable[[Tensor], Any]:
    return lambda x: torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)


def learned_start(model: Any) -> Callable[[Tensor], Any]:
    model.start = nn.Parameter(torch.randn(2, 3))
    return lambda x: torch.cat([model.start.expand(x.shape[0], 2, 3), x], 1)[:, :-2]


def constants_beside(model: Any) -> Callable[[Tensor], Any]:
    """A concatenation along features, which reads no other timestep."""
    return lambda x: torch.cat([torch.zeros_like(x[..., :1]), x[..., 1:]], 2)


def neighbours(model: Any) -> Callable[[Tensor], Any]:
    weights = [0.5, -0.25, 0.125]

    def summed(x: Tensor) -> Any:
        before = pad(x, (0, 0, 2, 0))
        return sum((before[:, k : k + x.shape[1]] * weights[k] for k in range(3)), torch.zeros(1))

    return summed


class Smoothed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        both = pad(x, (0, 0, 1, 0))
        return (both[:, 1:] + both[:, :-1]) / 2


def after_the_recurrence(model: Any) -> Callable[[Tensor], Any]:
    """A mean whose carried timesteps are outputs of the recurrence."""
    model.after = Smoothed()
    return lambda x: x


CAUSAL: dict[Callable[..., Any], list[tuple[int | str, ...]]] = {
    cut_after: [("batch", 3, 4)],
    gated: [("batch", 3, 1), ("batch", 3, 1)],
    padded_once_for_two: [("batch", 1, 3, 3)],
    stacked: [("batch", 1, 3, 1), ("batch", 1, 3, 2)],
    spectral: [("batch", 1, 1, 3), ("batch", 2, 1, 3)],
    padded_on_both_sides: [("batch", 1, 3, 2)],
    padded_along_time_then_frequency: [("batch", 1, 1, 1, 3)],
    features_between: [("batch", 1, 2, 3)],
    gated_linear_units: [("batch", 3, 2)],
    volumetric: [("batch", 1, 1, 3, 1)],
    transposed_with_padding: [("batch", 3, 2)],
    per_timestep: [],
    shifted: [("batch", 1, 1, 3)],
    padded_after_a_cut: [("batch", 1, 1, 3)],
    shifted_by_concatenation: [("batch", 1, 2, 3)],
    teacher_forced: [("batch", 1, 1, 3)],
    learned_start: [("batch", 1, 2, 3)],
    constants_beside: [],
    neighbours: [("batch", 1, 2, 3)],
    after_the_recurrence: [("batch", 1, 1, 4)],
}
"""Causal models, and the shapes of the past timesteps that they carry."""


def centred(model: Any) -> Callable[[Tensor], Any]:
    """A convolution that reads the next timestep."""
    model.conv = nn.Conv1d(3, 3, 3, padding=1)
    return lambda x: model.conv(x.transpose(1, 2)).transpose(1, 2)


def cut_at_the_begin(model: Any) -> Callable[[Tensor], Any]:
    model.conv = nn.Conv1d(3, 3, 3, padding=2)
    return lambda x: model.conv(x.transpose(1, 2))[:, :, 2:].transpose(1, 2)


def every_second(model: Any) -> Callable[[Tensor], Any]:
    """The window moves by two timesteps: which ones depends on those before the chunk."""
    model.conv = nn.Conv1d(3, 3, 2, stride=2)
    return lambda x: model.conv(pad(x.transpose(1, 2), (1, 0))).repeat_interleave(2, 2)[..., : x.shape[1]].mT


def mirrored(model: Any) -> Callable[[Tensor], Any]:
    model.conv = nn.Conv1d(3, 3, 2)
    return lambda x: model.conv(pad(x.transpose(1, 2), (1, 0), mode="replicate")).transpose(1, 2)


def scaled_by_its_length(model: Any) -> Callable[[Tensor], Any]:
    model.conv = nn.Conv1d(3, 3, 2, padding=1)
    return lambda x: (model.conv(x.transpose(1, 2)) * x.shape[1])[:, :, :-1].transpose(1, 2)


def padded_twice(model: Any) -> Callable[[Tensor], Any]:
    """The zeros of the second convolution are before those of the first."""
    model.a, model.b = nn.Conv1d(3, 3, 3, padding=2), nn.Conv1d(3, 3, 3, padding=2)
    return lambda x: model.b(model.a(x.transpose(1, 2)))[:, :, :-4].transpose(1, 2)


def padded_after_other_constants(model: Any) -> Callable[[Tensor], Any]:
    """The zeros of the second padding are before the ones that the cosine makes of the first."""
    model.conv = nn.Conv1d(3, 3, 3)
    return lambda x: model.conv(pad(torch.cos(pad(x.transpose(1, 2), (1, 0))), (1, 1)))[:, :, :-1].transpose(1, 2)


def added_up(model: Any) -> Callable[[Tensor], Any]:
    return lambda x: torch.cumsum(pad(x, (0, 0, 1, 0)), 1)[:, :-1]


def softmax_over_time(model: Any) -> Callable[[Tensor], Any]:
    return lambda x: torch.log_softmax(pad(x, (0, 0, 1, 0)).cumsum(1), 1)[:, :-1]


def longer_than_its_windows(model: Any) -> Callable[[Tensor], Any]:
    """A transposed convolution with positions after the last window."""
    model.conv = nn.ConvTranspose1d(3, 3, 2, dilation=2, output_padding=1)
    return lambda x: model.conv(x.transpose(1, 2))[:, :, : x.shape[1]].transpose(1, 2)


NOT_CAUSAL = (
    *(longer_than_its_windows, centred, cut_at_the_begin, every_second, mirrored),
    *(scaled_by_its_length, padded_twice, padded_after_other_constants, added_up, softmax_over_time),
)
"""Models that read other timesteps than those before, or constants that no chunk has."""

"""Convolutions as long as the sequence, computed by Fourier transforms."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from input_configs import one_input
from torch import Tensor, nn

from torchserve_neuron_lstm.lowering import LoweringError, lower

CONFIG = one_input("[batch, time, 3]", length="[7, 24]", batch="[4]")


class Model(nn.Module):
    """A convolution of x[B, T, 3] with a kernel of T timesteps, exp(-rate * t)."""

    def __init__(self, run: Callable[[Any, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rate, self.out, self.run = nn.Parameter(torch.rand(3)), nn.Linear(3, 2), [run]

    def forward(self, x: Tensor) -> Tensor:
        kernel = torch.exp(-self.rate[:, None] * torch.arange(x.size(1)))
        return self.out(self.run[0](self, x.transpose(1, 2), kernel).transpose(1, 2))  # type: ignore[no-any-return]  # a module's call is untyped


def real(m: Model, u: Tensor, k: Tensor) -> Any:
    n = 2 * u.size(-1)
    return torch.fft.irfft(torch.fft.rfft(u, n=n) * torch.fft.rfft(k, n=n), n=n)[..., : u.size(-1)]


def all_of_the_convolution(m: Model, u: Tensor, k: Tensor) -> Any:
    n = 2 * u.size(-1)
    return torch.fft.irfft(torch.fft.rfft(k, n=n) * torch.fft.rfft(u, n=n), n=n)


def of_complex_numbers(m: Model, u: Tensor, k: Tensor) -> Any:
    n = 2 * u.size(-1)
    return torch.fft.ifft(torch.fft.fft(u, n=n) * torch.fft.fft(k + 0j, n=n), n=n).real[..., : u.size(-1)]


def with_a_short_kernel(m: Model, u: Tensor, k: Tensor) -> Any:
    n = u.size(-1) + 4
    short = torch.stack([m.rate, m.rate**2, m.rate - 1], 1)
    return torch.fft.irfft(torch.fft.rfft(u, n=n) * torch.fft.rfft(short, n=n), n=2 * (n // 2) + n % 2)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "run",
    [
        *(real, all_of_the_convolution, of_complex_numbers, with_a_short_kernel),
        lambda m, u, k: torch.fft.irfft(torch.fft.rfft(u, dim=1), n=3, dim=1),
    ],
)
def test_a_convolution_by_spectra_is_that_of_each_request_alone(run: Callable[..., Tensor]) -> None:
    model = Model(run).eval()
    lengths = [24, 7, 1, 12]
    x = torch.full((4, 24, 3), 1e4)
    requests = [torch.randn(1, length, 3) for length in lengths]
    for row, request in enumerate(requests):
        x[row, : request.size(1)] = request[0]

    together = lower(model, CONFIG).exported.module()(x, torch.tensor(lengths))[0]

    for row, request in enumerate(requests):
        alone = model(request)
        torch.testing.assert_close(together[row, : alone.size(1)], alone[0], atol=1e-5, rtol=1e-5)


def too_few_samples(m: Model, u: Tensor, k: Tensor) -> Any:
    n = u.size(-1)
    return torch.fft.irfft(torch.fft.rfft(u, n=n) * torch.fft.rfft(k, n=n), n=n)


def samples_that_are_too_few_for_long_requests(m: Model, u: Tensor, k: Tensor) -> Any:
    n = u.size(-1) + 8
    return torch.fft.irfft(torch.fft.rfft(u, n=n) * torch.fft.rfft(k, n=n), n=n)[..., : u.size(-1)]


def three_factors(m: Model, u: Tensor, k: Tensor) -> Any:
    n = 2 * u.size(-1)
    u_f, k_f = torch.fft.rfft(u, n=n), torch.fft.rfft(k, n=n)
    return torch.fft.irfft(u_f * k_f * k_f, n=n)[..., : u.size(-1)]


def correlation(m: Model, u: Tensor, k: Tensor) -> Any:
    n = 2 * u.size(-1)
    return torch.fft.irfft(torch.fft.rfft(u, n=n).conj() * torch.fft.rfft(k, n=n), n=n)[..., : u.size(-1)]


def low_frequencies(m: Model, u: Tensor, k: Tensor) -> Any:
    return torch.fft.rfft(u, n=2 * u.size(-1)).abs()[..., : u.size(-1)]


def scaled(m: Model, u: Tensor, k: Tensor) -> Any:
    n = 2 * u.size(-1)
    return torch.fft.irfft(torch.fft.rfft(u, n=n, norm="ortho") * torch.fft.rfft(k, n=n, norm="ortho"), n=n)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "run",
    [too_few_samples, samples_that_are_too_few_for_long_requests, three_factors, correlation, low_frequencies, scaled],
)
def test_other_uses_of_a_spectrum_over_the_timesteps_are_refused(run: Callable[..., Tensor]) -> None:
    with pytest.raises(LoweringError, match=r"Fourier transform .* .at \S+:\d+: "):
        lower(Model(run).eval(), CONFIG)

"""Rules of long convolutions, which multiply spectra over the timesteps, as state-space models do.

`irfft(rfft(x, n) * rfft(k, n), n)` is the convolution of x and k if n is at least as large as its result, whatever n
is. So the rows of a batch may have spectra of more samples than a request alone, and a spectrum has no other use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
import torch

from .elementwise_rules import each_alike, is_ragged_number, pointwise
from .sizes import SizeExpr, are_equal, is_ragged, never_less
from .value import Batch, Call, NoRule, Results, Value

NO_CONVOLUTION = "a Fourier transform over the timesteps that is no part of a convolution"


@dataclass(frozen=True, kw_only=True)
class Spectrum(Value):
    """A spectrum of each request over its own samples, of which it has fewer than the padded ones."""

    samples: SizeExpr
    support: SizeExpr
    """Samples of the signal; the others are 0."""
    place: int
    """The transformed dimension, counted from the last one."""
    inverse: str
    """The function that returns the signal."""


def transform(batch: Batch, call: Call) -> Results:
    """Transform the timesteps of each row, or a dimension that is not ragged."""
    value, dim, samples = call.value(), call.dim, call["n"]
    size = value.sizes[dim]
    if not is_ragged(size) and not is_ragged_number(samples):
        return each_alike(batch, call)
    samples = size if samples is None else sympy.sympify(samples)
    if not never_less(samples, size) or call["norm"] not in (None, "backward"):
        raise NoRule(NO_CONVOLUTION)
    name = str(call.target).split("_")[1].split(".")[0]
    signal = batch.masked(value, [dim], 0)
    tensor = getattr(torch.fft, name)(signal, n=batch.padded(samples), dim=dim + 1)
    tensor = tensor.expand(batch.rows, *tensor.shape[1:])
    inverse = f"aten.fft_i{name}.default"
    return Spectrum(tensor, call.sizes[0], samples=samples, support=size, place=value.rank - dim, inverse=inverse)


def product(batch: Batch, call: Call) -> Results:
    """Multiply two spectra of as many samples as their convolution has timesteps, or more."""
    a, b = call["self"], call["other"]
    if not isinstance(a, Spectrum) or not isinstance(b, Spectrum):
        raise NoRule(NO_CONVOLUTION)
    support = a.support + b.support - 1
    alike = (a.place, a.inverse) == (b.place, b.inverse) and are_equal(a.samples, b.samples)
    if not alike or not never_less(a.samples, support):
        raise NoRule("a Fourier transform of fewer samples than the convolution has timesteps")
    made = pointwise(batch, call)
    assert isinstance(made, Value)
    return Spectrum(made.tensor, call.sizes[0], samples=a.samples, support=support, place=a.place, inverse=a.inverse)


def inverse(batch: Batch, call: Call) -> Results:
    """Return the signal of a spectrum, with as many samples as it was made of."""
    value, dim, samples = call.value(), call.dim, call["n"]
    if not isinstance(value, Spectrum):
        if is_ragged(value.sizes[dim]) or is_ragged_number(samples):
            raise NoRule(NO_CONVOLUTION)
        return each_alike(batch, call)
    own = call.sizes[0][dim]
    is_inverse = str(call.target) == value.inverse and value.place == value.rank - dim
    if not is_inverse or not are_equal(own, value.samples) or call["norm"] not in (None, "backward"):
        raise NoRule(NO_CONVOLUTION)
    function: Any = call.target.overloadpacket
    return call.result(function(value.tensor, batch.padded(value.samples), dim + 1))

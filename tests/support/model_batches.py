"""Ragged batches of the test models, in a bucket."""

from __future__ import annotations

import torch

from torchserve_neuron_lstm.backends.interface import Rehearsal
from torchserve_neuron_lstm.bucketing.padding import lengths_tensor, pad, torch_dtype
from torchserve_neuron_lstm.bucketing.shapes import Bucket, TensorSpec


def drawn(spec: TensorSpec, length: int) -> torch.Tensor:
    """A request's input, with small ids."""
    sizes = spec.item_sizes(length)
    dtype = torch_dtype(spec)
    if dtype.is_floating_point:
        return torch.randn(sizes, dtype=dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 5, sizes, dtype=dtype)


def inputs_of(specs: tuple[TensorSpec, ...], bucket: Bucket, *, takes_lengths: bool) -> list[torch.Tensor]:
    """A ragged batch in a bucket."""
    torch.manual_seed(0)
    lengths = [bucket.length - 2 * row for row in range(bucket.batch)]
    tensors = [pad([drawn(spec, length) for length in lengths], spec, bucket) for spec in specs]
    return [*tensors, lengths_tensor(lengths, bucket)] if takes_lengths else tensors


def rehearsal(bucket: Bucket, inputs: list[torch.Tensor]) -> Rehearsal[str]:
    """A call of the program over whole sequences."""
    return Rehearsal(bucket, lambda programs: programs["sequence"](inputs))

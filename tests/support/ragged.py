"""Random requests of every length, and the model's answer to each of them alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from torchserve_neuron_lstm.bucketing.execute import Pad
from torchserve_neuron_lstm.bucketing.padding import torch_dtype
from torchserve_neuron_lstm.bucketing.shapes import Bucket, TensorSpec, size_at
from torchserve_neuron_lstm.config.schema import ServingConfig
from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.eager_call import call_eagerly
from torchserve_neuron_lstm.lowering.exporter.export import bind_arguments
from torchserve_neuron_lstm.lowering.program import LoweredModel

GARBAGE = (0.0, 1e4, 1e30, float("nan"), float("inf"))
BATCHES = ([1], [9, 1, 4], [16, 15, 1, 7, 16], [2, 2, 3])


@dataclass(frozen=True)
class Ragged:
    """Requests of one batch: for each request its length and its tensors of item_shape."""

    lengths: list[int]
    items: list[list[torch.Tensor]]


def ragged(inputs: Sequence[TensorSpec], lengths: Sequence[int], seed: int) -> Ragged:
    generator = torch.Generator().manual_seed(seed)
    return Ragged(list(lengths), [[_random(spec, length, generator) for spec in inputs] for length in lengths])


def _random(spec: TensorSpec, length: int, generator: torch.Generator) -> torch.Tensor:
    shape = [length if size == "time" else int(size) for size in spec.item_shape]
    if spec.dtype.startswith("float"):
        return torch.randn(shape, generator=generator)
    lowest, highest = spec.value_range or (0, (spec.vocabulary or 2) - 1)
    return torch.randint(int(lowest), int(highest) + 1, shape, generator=generator).to(torch_dtype(spec))


def padded(requests: Ragged, spec: TensorSpec, index: int, length: int, garbage: float) -> torch.Tensor:
    """The batch of one input, with arbitrary values in the padding (a valid id where the input holds ids)."""
    return pad_with(garbage)([item[index] for item in requests.items], spec, Bucket(len(requests.lengths), length))


def pad_with(garbage: float) -> Pad:
    """`padding.pad` with arbitrary values in the padding, whole rows included; valid ids for id inputs."""

    def pad(items: Sequence[torch.Tensor], spec: TensorSpec, bucket: Bucket) -> torch.Tensor:
        outside = 0 if spec.value_range else 1
        filler = garbage if spec.dtype.startswith("float") else spec.vocabulary - 1 if spec.vocabulary else outside
        batch = torch.full(spec.sizes(*bucket), filler, dtype=torch_dtype(spec))
        for row, item in enumerate(items):
            place = batch if spec.batch_dim is None else batch.select(spec.batch_dim, row)
            if spec.time_dim is not None:
                dim = spec.item_shape.index("time")
                place = place.narrow(dim, 0, item.shape[dim])
            place.copy_(item)
        return batch

    return pad


def alone(model: nn.Module, config: ServingConfig, item: Sequence[torch.Tensor], length: int) -> list[torch.Tensor]:
    """The model's own eager answer to one request, in the form of a batch of one."""
    batch = [
        tensor if spec.batch_dim is None else tensor.unsqueeze(spec.batch_dim)
        for spec, tensor in zip(config.input_specs, item, strict=True)
    ]
    answer = call_eagerly(model, bind_arguments(config, batch, torch.tensor([length])))
    return [leaf for leaf in torch.utils._pytree.tree_leaves(answer) if isinstance(leaf, torch.Tensor)]


def part_of(output: torch.Tensor, spec: TensorSpec, row: int, length: int) -> torch.Tensor:
    """One row of a program's output, cut to its length, with a batch dimension of one."""
    for dim, size in enumerate(spec.shape):
        if isinstance(size, str) and size != "batch":
            output = output.narrow(dim, 0, size_at(size, length))
    return output if spec.batch_dim is None else output.narrow(spec.batch_dim, row, 1)


def lower_exact(
    model: nn.Module,
    config: ServingConfig,
    batches: Sequence[Sequence[int]] = BATCHES,
    garbage: Sequence[float] = GARBAGE,
) -> LoweredModel:
    """Lower a model, compare the program with each request alone, and return it."""
    program = lower(model, config)
    assert_answers_alone(model, config, program, batches, garbage)
    return program


def assert_answers_alone(
    model: nn.Module,
    config: ServingConfig,
    program: LoweredModel,
    batches: Sequence[Sequence[int]],
    garbage: Sequence[float] = GARBAGE,
) -> None:
    """Check batches of these lengths, with garbage in the padding, against each request alone."""
    for ours, expected, told in beside_alone(model, config, program, batches, garbage):
        assert ours.numel() == expected.numel(), told
        assert torch.allclose(ours.reshape(expected.shape), expected, 1e-5, 1e-5), told


def beside_alone(
    model: nn.Module,
    config: ServingConfig,
    program: LoweredModel,
    batches: Sequence[Sequence[int]],
    garbage: Sequence[float] = GARBAGE,
) -> Iterator[tuple[torch.Tensor, torch.Tensor, str]]:
    """Yield each output of each request in these batches, beside the model's own, and tell which it is."""
    run, longest = program.exported.module(), config.grid.lengths[-1]
    for seed, batch in enumerate(batches):
        requests = ragged(program.inputs, batch, seed)
        for value in garbage:
            tensors = [padded(requests, spec, i, longest, value) for i, spec in enumerate(program.inputs)]
            with torch.no_grad():
                outputs = run(*tensors, torch.tensor(batch)) if program.takes_lengths else run(*tensors)
            for row, length in enumerate(batch):
                own = alone(model, config, requests.items[row], length)
                for output, spec, expected in zip(outputs, program.outputs, own, strict=True):
                    told = f"{spec.name} of {length} timesteps in {batch}, {value} in the padding"
                    yield part_of(output, spec, row, length), expected, told

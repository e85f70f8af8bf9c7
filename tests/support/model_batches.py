"""The test models in the engine `cuda`, on a device: ragged batches against the program on the CPU."""

from collections.abc import Callable
from pathlib import Path

import torch
from carrying_models import lowered_carrying
from chunked_models import assert_chunks_equal_whole_sequences
from graph_programs import compiled_chunks
from model_cases import Case, lowered
from torch import nn

from torchserve_neuron_lstm.backends.cuda.engine import Cuda, load_on_device
from torchserve_neuron_lstm.backends.cuda.torch_device import TorchDevice
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import Rehearsal
from torchserve_neuron_lstm.bucketing.padding import lengths_tensor, pad, torch_dtype
from torchserve_neuron_lstm.bucketing.shapes import Bucket, TensorSpec


def _drawn(spec: TensorSpec, length: int) -> torch.Tensor:
    """A request's input, with small ids."""
    sizes = spec.item_sizes(length)
    dtype = torch_dtype(spec)
    if dtype.is_floating_point:
        return torch.randn(sizes, dtype=dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 5, sizes, dtype=dtype)


def _inputs_of(specs: tuple[TensorSpec, ...], bucket: Bucket, *, takes_lengths: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    lengths = [bucket.length - 2 * row for row in range(bucket.batch)]
    tensors = [pad([_drawn(spec, length) for length in lengths], spec, bucket) for spec in specs]
    return [*tensors, lengths_tensor(lengths, bucket)] if takes_lengths else tensors


def _rehearsal(bucket: Bucket, inputs: list[torch.Tensor]) -> Rehearsal[str]:
    return Rehearsal(bucket, lambda programs: programs["sequence"](inputs))


def assert_equals_program(device: TorchDevice, case: Case, directory: Path) -> None:
    """Compile a model, capture it in two buckets, and compare the outputs with those of the program on the CPU."""
    program = lowered(case).program
    exported = program.exported
    Cuda().compile(exported, None, directory)
    rows = 4 if any("batch" in spec.shape for spec in program.inputs) else 1
    buckets = [Bucket(1, 9), Bucket(rows, 16)]
    inputs = {bucket: _inputs_of(program.inputs, bucket, takes_lengths=program.takes_lengths) for bucket in buckets}
    rehearsals = [_rehearsal(bucket, inputs[bucket]) for bucket in buckets]
    run = load_on_device(device, {"sequence": directory}, weights_of(exported), rehearsals)["sequence"]

    for bucket in buckets:
        for ours, theirs in zip(run(inputs[bucket]), exported.module()(*inputs[bucket]), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-5, equal_nan=True)


def assert_chunks_equal_model(device: TorchDevice, kind: Callable[[], nn.Module], directory: Path) -> None:
    """Compile the chunks of a model with carried values, and compare any cuts on a device with whole sequences."""
    model, program = lowered_carrying(kind)
    directories, weights = compiled_chunks(program, directory)
    loaded = load_on_device(device, directories, weights)
    lengths = (9, 8, 5, 3, 1, 1)
    requests = [[torch.randn(length, 3)] for length in lengths]
    assert_chunks_equal_whole_sequences(model, program, requests, lengths, loaded)

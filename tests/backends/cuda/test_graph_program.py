from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from graph_device import GraphDevice
from graph_programs import BUCKETS, Stepping, captured_model, compiled
from recurrent import CASES, Recurrent, exported, largest_error, ragged_batch

from torchserve_neuron_lstm.backends.cuda.engine import load_on_device
from torchserve_neuron_lstm.backends.cuda.graph_program import GraphProgram
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.signature import WrongInput
from torchserve_neuron_lstm.bucketing.shapes import Bucket


@torch.no_grad()
def test_a_call_is_a_launch_between_two_copies_and_one_wait(tmp_path: Path) -> None:
    module, device = Recurrent(CASES[0]).eval(), GraphDevice()
    run = captured_model(module, tmp_path, device)
    launches, waits, copies = device.launches, device.waits, device.to_host
    run(ragged_batch(0.0))

    assert (device.launches - launches, device.waits - waits, device.to_host - copies) == (1, 1, 1)


@torch.no_grad()
def test_no_later_call_changes_the_outputs(tmp_path: Path) -> None:
    """The caller owns them, although each call of a shape writes the same memory of the device."""
    run = captured_model(Recurrent(CASES[0]).eval(), tmp_path)
    x, lengths = ragged_batch(0.0)
    first = run([x, lengths])
    kept = [tensor.clone() for tensor in first]
    run([x + 1, lengths])

    assert all(torch.equal(tensor, before) for tensor, before in zip(first, kept, strict=True))


@torch.no_grad()
def test_threads_take_turns_on_the_device(tmp_path: Path) -> None:
    module = Recurrent(CASES[0]).eval()
    run = captured_model(module, tmp_path)
    requests = [ragged_batch(0.0, *bucket) for bucket in BUCKETS * 6]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(run, requests))

    for (x, lengths), outputs in zip(requests, found, strict=True):
        assert largest_error(outputs, module.alone(x, lengths)) <= 1e-5


def test_inputs_of_another_dtype_are_refused(tmp_path: Path) -> None:
    """The graph would read other numbers."""
    run = captured_model(Recurrent(CASES[0]), tmp_path)
    x, lengths = ragged_batch(0.0)
    with pytest.raises(WrongInput, match="float64"):
        run([x.double(), lengths])


@torch.no_grad()
def test_a_chain_of_chunks_carries_its_state_on_the_device(tmp_path: Path) -> None:
    module, device = Stepping().eval(), GraphDevice()
    x, lengths = ragged_batch(0.0, 4, 4)
    program = exported(module, x, lengths, torch.zeros(4, 6))
    run = load_on_device(device, {"chunk": compiled(program, tmp_path / "program")}, weights_of(program))["chunk"]
    assert isinstance(run, GraphProgram)
    buckets = [Bucket(4, 4), Bucket(4, 4), Bucket(2, 8), Bucket(1, 4)]
    calls = [list(ragged_batch(0.0, *bucket)) for bucket in buckets]
    calls = [[call[0] + index, call[1]] for index, call in enumerate(calls)]
    state = torch.randn(4, 6)
    run.chain(buckets, calls, [state])  # captures
    waits = device.waits
    found = run.chain(buckets, calls, [state])

    assert device.waits == waits + 1
    for call, results, bucket in zip(calls, found, buckets, strict=True):
        expected = module(*call, state[: bucket.batch])
        assert largest_error(results, list(expected)) <= 1e-5
        state = expected[1]

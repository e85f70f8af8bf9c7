from pathlib import Path

import pytest
import torch
from graph_device import GraphDevice
from graph_programs import captured_model, compiled, loaded, rehearsals
from recurrent import BATCH, CASES, TIME, Case, Recurrent, exported, ragged_batch

from torchserve_neuron_lstm.backends.cuda.engine import load_on_device
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import LoadError


@torch.no_grad()
def test_weights_are_uploaded_and_laid_out_once_for_all_graphs(tmp_path: Path) -> None:
    module, device = Recurrent(Case(layers=2, bidirectional=True)).eval(), GraphDevice()
    program = exported(module, *ragged_batch(0.0))
    directory = compiled(program, tmp_path / "program")
    weights = weights_of(program)
    load_on_device(device, {"sequence": directory, "chunk": directory}, weights, rehearsals("sequence", "chunk"))

    assert (device.uploads, device.flattened, len(device.captured)) == (len(weights), 4, 6)


@torch.no_grad()
def test_the_largest_bucket_is_captured_first(tmp_path: Path) -> None:
    """Its memory then serves all smaller ones."""
    module, device = Recurrent(CASES[0]).eval(), GraphDevice()
    captured_model(module, tmp_path, device)

    assert device.captured == sorted(device.captured, reverse=True)


@torch.no_grad()
def test_buckets_that_do_not_fit_are_named(tmp_path: Path) -> None:
    module, device = Recurrent(CASES[0]).eval(), GraphDevice()
    program = exported(module, *ragged_batch(0.0))
    directory, weights = compiled(program, tmp_path / "program"), weights_of(program)
    held = loaded(device, directory, weights)
    for_the_second = device.used + device.captured[1]
    del held
    with pytest.raises(LoadError, match="do not fit into the memory of the double") as caught:
        loaded(GraphDevice(for_the_second), directory, weights)

    assert f"after loading the weights): {2 * BATCH} x {TIME}. Serve smaller buckets" in str(caught.value)


@torch.no_grad()
def test_weights_that_do_not_fit_are_told(tmp_path: Path) -> None:
    """No bucket is blamed for them."""
    program = exported(Recurrent(CASES[0]), *ragged_batch(0.0))
    directory = compiled(program, tmp_path / "program")
    with pytest.raises(LoadError, match="the weights do not fit"):
        loaded(GraphDevice(100), directory, weights_of(program))

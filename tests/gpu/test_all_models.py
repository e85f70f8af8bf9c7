"""All test models on a real GPU, against the lowered program on the CPU; chunks against whole sequences there.

Without a GPU, each test is skipped as not run.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("pydantic", reason="not run: the configurations of the test models need pydantic")

from carrying_models import CARRYING, lowered_carrying
from chunked_models import assert_chunks_equal_whole_sequences
from graph_programs import compiled_chunks
from model_batches import assert_equals_program
from model_cases import Case, cases

from torchserve_neuron_lstm.backends.cuda.engine import load_on_device
from torchserve_neuron_lstm.backends.cuda.torch_device import TorchDevice, gpu_missing

_MISSING = gpu_missing()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_MISSING is not None, reason=f"not run: {_MISSING}")]


@pytest.mark.parametrize("case", cases())
@torch.no_grad()
def test_equals_the_program_on_the_cpu_in_every_bucket(case: Case, tmp_path: Path) -> None:
    """The engine refuses no test model."""
    assert_equals_program(TorchDevice(0), case, tmp_path)


LENGTHS = (9, 8, 5, 3, 1, 1)


@pytest.mark.parametrize("kind", CARRYING)
def test_chunks_cut_anywhere_equal_the_whole_sequence(kind: Callable[[], nn.Module], tmp_path: Path) -> None:
    model, program = lowered_carrying(kind)
    directories, weights = compiled_chunks(program, tmp_path)
    loaded = load_on_device(TorchDevice(0), directories, weights)

    requests = [[torch.randn(length, 3)] for length in LENGTHS]
    assert_chunks_equal_whole_sequences(model, program, requests, LENGTHS, loaded)

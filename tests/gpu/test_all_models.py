"""All test models on a real GPU, against the lowered program on the CPU; chunks against whole sequences there.

Without a GPU, each test is skipped as not run.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("pydantic", reason="not run: the configurations of the test models need pydantic")

from carrying_models import CARRYING
from model_batches import assert_chunks_equal_model, assert_equals_program
from model_cases import Case, cases

from torchserve_neuron_lstm.backends.cuda.torch_device import TorchDevice, gpu_missing

_MISSING = gpu_missing()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_MISSING is not None, reason=f"not run: {_MISSING}")]


@pytest.mark.parametrize("case", cases())
@torch.no_grad()
def test_equals_the_program_on_the_cpu_in_every_bucket(case: Case, tmp_path: Path) -> None:
    """The engine refuses no test model."""
    assert_equals_program(TorchDevice(0), case, tmp_path)


@pytest.mark.parametrize("kind", CARRYING)
def test_chunks_cut_anywhere_equal_the_whole_sequence(kind: Callable[[], nn.Module], tmp_path: Path) -> None:
    assert_chunks_equal_model(TorchDevice(0), kind, tmp_path)

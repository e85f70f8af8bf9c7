from __future__ import annotations

from pathlib import Path

import pytest
import torch
from graph_programs import captured_model, compiled
from recurrent import GARBAGE, Case, Recurrent, exported, largest_error, ragged_batch

from torchserve_neuron_lstm.backends import versions
from torchserve_neuron_lstm.backends.cuda.engine import Cuda
from torchserve_neuron_lstm.backends.exported_tensors import weights_of


@pytest.mark.few(3)
@pytest.mark.parametrize(("precision", "error"), [("bfloat16", 3e-2), ("float16", 4e-3)])
@pytest.mark.parametrize("case", [Case(layers=2), Case(projected=True, bidirectional=True), Case("gru")], ids=str)
@torch.no_grad()
def test_a_lower_precision_computes_recurrences_in_it(case: Case, precision: str, error: float, tmp_path: Path) -> None:
    """Inputs and outputs keep their dtype, whatever the padding holds; the weights are reduced once."""
    module = Recurrent(case).eval()
    run = captured_model(module, tmp_path, precision=precision)
    for garbage in GARBAGE:
        x, lengths = ragged_batch(garbage)
        outputs = run([x, lengths])

        assert {output.dtype for output in outputs} == {torch.float32}
        assert 1e-6 < largest_error(outputs, module.alone(x, lengths)) < error


@torch.no_grad()
def test_packaging_computes_in_the_precision_that_the_gpu_will(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification on the CPU sees the rounding: more than that of float32, less than that of bfloat16."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    module, inputs = Recurrent(Case(layers=2)).eval(), ragged_batch(0.0)
    program, errors = exported(module, *inputs), {}
    for precision in Cuda.precisions:
        directory = compiled(program, tmp_path / precision, precision=precision)
        with versions.enable_emulation():
            run = Cuda().load(directory, weights_of(program), {}, 1)
        errors[precision] = largest_error(run(inputs), module.alone(*inputs))

    assert errors["float32"] < 1e-6 < errors["float16"] < errors["bfloat16"]

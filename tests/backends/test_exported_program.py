from pathlib import Path

import pytest
import torch
from input_configs import config_of
from torch import nn

from torchserve_neuron_lstm.backends.exported_program import is_assertion, load_program, save_program
from torchserve_neuron_lstm.backends.exported_tensors import mark_time, time_dims
from torchserve_neuron_lstm.backends.signature import signature_of
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.lowering import lower


class Steps(nn.Module):
    def forward(self, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 2


@pytest.mark.parametrize(
    ("shape", "fixed"),
    [("[batch, time, 3]", (2, 5, 3)), ("[time, batch, 3]", (5, 2, 3)), ("[batch, 3, time]", (2, 3, 5))],
)
def test_a_program_without_recurrence_has_its_buckets_sizes(shape: str, fixed: tuple[int, ...], tmp_path: Path) -> None:
    inputs = f"{{x: {{dtype: float32, shape: {shape}}}, k: {{dtype: float32, shape: [batch]}}}}"
    program = lower(Steps().eval(), config_of(inputs, batch="[2]", length="[5]")).exported
    save_program(program, tmp_path / "program.pt2")

    for one in (program, load_program(tmp_path / "program.pt2")):
        specs = signature_of(one, Bucket(2, 5)).inputs
        assert [specs[name].shape for name in ("x", "k")] == [fixed, (2,)]


def test_a_program_without_notes_comes_back_without(tmp_path: Path) -> None:
    program = torch.export.export(Steps(), (torch.zeros(2, 3), torch.zeros(2)))
    torch.export.save(program, tmp_path / "program.pt2")

    assert time_dims(load_program(tmp_path / "program.pt2")) == {}
    mark_time(program, {"x": 1, "no such input": 0})
    assert time_dims(program) == {"x": 1}


def test_calls_that_only_check_are_told_from_inputs_of_such_a_name() -> None:
    graph = torch.fx.Graph()
    named = graph.placeholder("asserted")
    checks = [
        graph.call_function(torch.ops.aten._assert_async.default, (named,)),
        graph.call_function(torch.ops.aten.sym_constrain_range_for_size.default, (named,)),
    ]
    unused = graph.placeholder("assertion")
    computed = graph.call_function(torch.ops.aten.relu.default, (named,))

    assert all(map(is_assertion, checks))
    assert not any(map(is_assertion, (named, unused, computed)))

    graph.output(checks[0])
    assert not is_assertion(checks[0])

"""The recurrences as loops: the abstract operators exactly, in operators that every compiler supports."""

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from recurrent import BATCH, CASES, GARBAGE, TIME, Several, exported, largest_error, several_inputs

from torchserve_neuron_lstm.backends.aws_neuron import compile_job, source_module, unrolled
from torchserve_neuron_lstm.backends.aws_neuron.source_export import export_source
from torchserve_neuron_lstm.backends.aws_neuron.source_program import SourceProgram
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.bucketing.shapes import Bucket

pytestmark = pytest.mark.ci

BASIC = {
    *("linear", "select", "stack", "cat", "chunk", "unsqueeze", "gt", "where", "zeros_like", "ones_like", "rsub"),
    *("sigmoid", "tanh", "relu", "add", "mul"),
}


@pytest.fixture(scope="module")
def module() -> Several:
    torch.manual_seed(0)
    return Several(CASES, rows=1000).eval()


@pytest.fixture(scope="module")
def program(module: Several) -> torch.export.ExportedProgram:
    return exported(module, *several_inputs(0.0))


@pytest.fixture(scope="module")
def source_program(program: torch.export.ExportedProgram) -> SourceProgram:
    return export_source(program, Bucket(BATCH, TIME))


@torch.no_grad()
def test_a_source_program_equals_every_row_alone(
    module: Several, program: torch.export.ExportedProgram, source_program: SourceProgram
) -> None:
    ours = source_program.module(weights_of(program))
    for garbage in GARBAGE:
        inputs = several_inputs(garbage)
        mine = [answer.contiguous() for answer in ours(*inputs)]
        mine, theirs = (module.without_padding(answers, garbage) for answers in (mine, module.alone(inputs)))

        assert largest_error(mine, theirs) <= 1e-6


def test_the_source_module_shares_weights(program: torch.export.ExportedProgram, source_program: SourceProgram) -> None:
    weights = weights_of(program)
    addresses = {tensor.data_ptr() for tensor in weights.values()}

    assert {tensor.data_ptr() for tensor in source_program.module(weights).parameters()} <= addresses


@pytest.mark.parametrize("reverse", [False, True])
def test_a_traced_recurrence_is_made_of_basic_operators(reverse: bool) -> None:
    weights = [torch.randn(24, 5), torch.randn(24, 6), torch.randn(24), torch.randn(24)] * (2 if reverse else 1)
    states = torch.zeros(2 if reverse else 1, 3, 6)

    def lstm(x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return unrolled.lstm(x, lengths, states, states, weights, True, 1, reverse, True)

    graph = torch.jit.trace(lstm, (torch.randn(3, 4, 5), torch.tensor([4, 1, 2])), check_trace=False).graph
    kinds = {node.kind().removeprefix("aten::") for node in graph.nodes() if node.kind().startswith("aten::")}

    assert kinds <= BASIC
    assert sum(node.kind() == "aten::tanh" for node in graph.nodes()) == 2 * 4 * (2 if reverse else 1)


def test_names_of_arguments_do_not_matter() -> None:
    class Awkward(torch.nn.Module):
        def forward(self, torch: torch.Tensor, device: torch.Tensor, lstm: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (torch + device.new_full((1,), float("-inf")).exp(), lstm * 2)

    inputs = (torch.randn(2, 3), torch.randn(2, 3), torch.ones(2, dtype=torch.int64))
    program = exported(Awkward(), *inputs)
    ours = export_source(program, Bucket(2, 3)).module(weights_of(program))(*inputs)

    assert torch.equal(ours[0], inputs[0])
    assert torch.equal(ours[1], inputs[2] * 2)


@pytest.mark.parametrize("module", [unrolled, source_module, compile_job], ids=lambda module: module.__name__[-12:])
def test_what_goes_to_another_interpreter_stands_alone(module: ModuleType, tmp_path: Path) -> None:
    source = Path(str(module.__file__)).read_text()
    ast.parse(source, feature_version=(3, 8))
    (tmp_path / "alone.py").write_text(source)
    code = "import sys; import alone; assert not [m for m in sys.modules if m.startswith('torchserve_neuron')]"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr

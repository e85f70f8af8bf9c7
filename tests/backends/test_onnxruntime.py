import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
import torch
from recurrent import Case, Recurrent, exported, ragged_batch
from torch.export import ExportedProgram

from torchserve_neuron_lstm.backends import onnxruntime
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import CompileError
from torchserve_neuron_lstm.backends.onnxruntime import OnnxRuntime
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.backends.signature import Signature, TensorType
from torchserve_neuron_lstm.bucketing.shapes import Bucket


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    return exported(Recurrent(Case()), *ragged_batch(0.0))


@pytest.fixture(scope="module")
def directory(program: ExportedProgram, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("onnx")
    OnnxRuntime().compile(program, None, folder)
    return folder


@pytest.mark.ci
@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_an_operator_without_counterpart_is_named(name: str, tmp_path: Path) -> None:
    class Bessel(torch.nn.Module):
        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (torch.special.bessel_j0(x) * lengths[:, None, None],)

    with pytest.raises(CompileError, match=r"the operator (aten|prims)::\w*bessel_j0; use another backend"):
        get_backend(name).compile(exported(Bessel(), *ragged_batch(0.0)), None, tmp_path)


@pytest.mark.ci
def test_what_the_engine_refuses_is_known_while_compiling(tmp_path: Path) -> None:
    """ONNX has recurrent layers in float64, the engine does not: packaging reports it."""
    module = Recurrent(Case()).double()
    x, lengths = ragged_batch(0.0)

    with pytest.raises(CompileError, match=r"does not support this program.*LSTM operator does not support double"):
        OnnxRuntime().compile(exported(module, x.double(), lengths), None, tmp_path)


@pytest.mark.ci
def test_compiling_prints_nothing(program: ExportedProgram, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    OnnxRuntime().compile(program, None, tmp_path)

    assert capfd.readouterr() == ("", "")


def test_the_graph_names_no_path(directory: Path) -> None:
    assert b".py" not in (directory / "program.onnx").read_bytes()


@pytest.mark.ci
def test_the_last_release_for_python_3_9_reads_the_graph(directory: Path) -> None:
    """It is ONNX Runtime 1.19, which reads IR 10 and opset 21."""
    model = onnx.load(directory / "program.onnx", load_external_data=False)

    assert model.ir_version <= 10
    assert {one.domain: one.version for one in model.opset_import}[""] <= 21


@pytest.mark.ci
def test_the_engine_reports_to_nobody(program: ExportedProgram, directory: Path, tmp_path: Path) -> None:
    """Its telemetry, which writes an id into the home directory, is off."""
    home = tmp_path / "home"
    home.mkdir()
    torch.save(weights_of(program), tmp_path / "weights.pt")
    code = (
        "import sys; from pathlib import Path; from torchserve_neuron_lstm.backends.registry import get_backend; "
        "from torchserve_neuron_lstm.backends.weights import read_weights; "
        "get_backend('onnxruntime').load(Path(sys.argv[1]), read_weights(Path(sys.argv[2])), {}, 1)"
    )
    # without the variables of test runs, with which the engine never reports
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home)}
    command = [sys.executable, "-c", code, str(directory), str(tmp_path / "weights.pt")]
    subprocess.run(command, env=environment, check=True, capture_output=True)

    assert [path for path in home.rglob("*") if path.is_file()] == []


def test_an_owner_may_turn_reporting_on(monkeypatch: pytest.MonkeyPatch) -> None:
    onnxruntime._engine()  # imported while it is off
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    onnxruntime._engine()

    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"


class Adder(torch.nn.Module):
    """The running sum of x[B, T, 2], added to the carry [B, 2]: per timestep and at the end."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sums = x.cumsum(1) + before[:, None]
        last = (lengths - 1)[:, None, None].expand(-1, 1, 2)
        return sums, sums.gather(1, last)[:, 0]


@pytest.mark.ci
def test_pieces_in_a_row_are_what_single_calls_give(tmp_path: Path) -> None:
    batch, time = torch.export.Dim("batch", min=1), torch.export.Dim("time", min=1)
    example = (torch.zeros(3, 5, 2), torch.tensor([5, 2, 1]), torch.zeros(3, 2))
    program = torch.export.export(Adder(), example, dynamic_shapes=({0: batch, 1: time}, {0: batch}, {0: batch}))
    OnnxRuntime().compile(program, None, tmp_path)
    run = OnnxRuntime().load(tmp_path, weights_of(program), {}, threads=1)
    assert isinstance(run, onnxruntime._Program)
    buckets = [Bucket(4, 3), Bucket(4, 1), Bucket(2, 5), Bucket(1, 2)]
    calls = [[torch.randn(*bucket, 2), torch.full((bucket.batch,), bucket.length)] for bucket in buckets]

    given = run.chain(buckets, calls, [torch.ones(4, 2)])

    before = torch.ones(4, 2)
    for (sums, last), bucket, call in zip(given, buckets, calls, strict=True):
        right, before = run([*call, before[: bucket.batch].contiguous()])
        assert torch.equal(sums, right)
        assert torch.equal(last, before)


@pytest.mark.ci
def test_pieces_in_a_row_are_refused_before_the_first_is_run(program: ExportedProgram, directory: Path) -> None:
    run = OnnxRuntime().load(directory, weights_of(program), {}, threads=1)
    assert isinstance(run, onnxruntime._Program)

    with pytest.raises(ValueError, match="but the program was compiled for"):
        run.chain([Bucket(1, 2)], [[torch.zeros(1, 2, 3, dtype=torch.int64)]], [torch.ones(1)])


class _Node(NamedTuple):
    name: str


class _Passing:
    """A session like those of ONNX Runtime 1.19: an output that is an input is the memory of the input."""

    def get_inputs(self) -> list[_Node]:
        return [_Node("x"), _Node("carried_0")]

    def get_outputs(self) -> list[_Node]:
        return [_Node("x"), _Node("carried_0")]

    def run(self, names: list[str], feeds: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        return [feeds[name] for name in names]


def test_an_output_that_is_an_input_is_the_callers_own() -> None:
    kind = TensorType("float32", ("s0", 3))
    program = onnxruntime._Program(Signature({"x": kind, "carried_0": kind}, {}), _Passing(), {})
    x, carried = torch.ones(2, 3), torch.zeros(2, 3)
    alone, chained = program([x, carried]), program.chain([Bucket(2, 1), Bucket(1, 1)], [[x], [x[:1]]], [carried])
    x.fill_(7.0)
    carried.fill_(7.0)

    for outputs in (alone, *chained):
        assert outputs[0].unique().tolist() == [1.0]
        assert outputs[1].unique().tolist() == [0.0]

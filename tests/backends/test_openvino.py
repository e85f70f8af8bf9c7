import json
import subprocess
import sys
from pathlib import Path
from typing import get_args
from unittest.mock import Mock

import pytest
import torch
from recurrent import BATCH, TIME, Case, Recurrent, Several, exported, largest_error, ragged_batch, several_inputs

from torchserve_neuron_lstm.backends import openvino as engine
from torchserve_neuron_lstm.backends.exported_program import specialize
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import CompileError, CompileSettings, LoadError, Precision, precision_of
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.config.schema import NeuronLstmBlock

SINGLE = ["FP32", "INT8"]
"""The capabilities of an older processor."""


def program_of(case: Case) -> tuple[Recurrent, torch.export.ExportedProgram]:
    torch.manual_seed(0)
    module = Recurrent(case, hidden=32).eval()
    return module, exported(module, *ragged_batch(0.0))


SIGNALLED = """
import faulthandler, os, signal, threading
from torchserve_neuron_lstm.backends import openvino as engine

faulthandler.enable()  # gives the main thread a stack for signals, as pytest does
ov = engine._engine()
x = ov.op.Parameter(ov.Type.f32, ov.Shape([1, 4]))
programs = [engine._core().compile_model(ov.Model([ov.opset13.relu(x)], [x]), "CPU")]
thread = threading.Thread(target=programs.clear)
thread.start()
thread.join()
signal.signal(signal.SIGTERM, lambda *_: print("received", flush=True))
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.ci
def test_a_signal_arrives_after_a_program_was_freed_in_another_thread() -> None:
    """On processors with AMX, OpenVINO replaces the stack on which the loading thread handles signals."""
    done = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "received\n", "")


@pytest.mark.ci
def test_importing_it_reports_to_nobody(tmp_path: Path) -> None:
    """The distribution's telemetry module is not imported, and no id is written to the home directory."""
    code = (
        "import sys; from torchserve_neuron_lstm.backends import openvino as ours; ours._core(); "
        "print([name for name in sys.modules if name.startswith('openvino_telemetry')])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], env={"HOME": str(tmp_path)}, capture_output=True, text=True, check=True
    ).stdout

    assert printed == "[]\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ci
@torch.no_grad()
@pytest.mark.parametrize(
    "case",
    [
        Case(layers=2, bidirectional=True, given_state=True),
        pytest.param(Case("gru", layers=2, given_state=True), marks=pytest.mark.long),
    ],
    ids=str,
)
def test_bfloat16_is_near_and_float32_is_exact(case: Case, tmp_path: Path) -> None:
    module, program = program_of(case)
    errors = {}
    for precision in engine.OpenVino.precisions:
        if engine._unsupported_precision(precision):
            continue
        directory = tmp_path / precision
        directory.mkdir()
        engine.OpenVino().compile(program, None, directory, CompileSettings(precision))
        run = engine.OpenVino().load(directory, weights_of(program), {}, 1)
        inputs = ragged_batch(1e4, batch=8, time=12)
        answers = run(inputs)
        errors[precision] = largest_error(answers, module.alone(*inputs))
        assert {answer.dtype for answer in answers} == {torch.float32}

    assert errors["float32"] <= 1e-5
    if "bfloat16" not in errors:
        pytest.skip("not run: this processor has no instructions for bfloat16")
    assert 1e-5 < errors["bfloat16"] <= 1e-2


@pytest.mark.ci
@torch.no_grad()
def test_answers_stay_when_it_runs_again(tmp_path: Path) -> None:
    _, program = program_of(Case())
    engine.OpenVino().compile(program, None, tmp_path)
    run = engine.OpenVino().load(tmp_path, weights_of(program), {}, 1)
    first = run(ragged_batch(0.0))
    before = [answer.clone() for answer in first]
    run([tensor + 1 for tensor in ragged_batch(0.0)])

    assert all(torch.equal(now, then) for now, then in zip(first, before, strict=True))


@pytest.mark.ci
@torch.no_grad()
def test_weights_may_lie_where_those_of_another_program_lay(tmp_path: Path) -> None:
    """Programs are loaded and freed in one process, and memory is reused: none reads another's weights."""
    _, written = program_of(Case())
    engine.OpenVino().compile(written, None, tmp_path)
    for _ in range(8):
        module, program = program_of(Case())
        run = engine.OpenVino().load(tmp_path, weights_of(program), {}, 1)
        inputs = ragged_batch(0.0)
        assert largest_error(run(inputs), module.alone(*inputs)) <= 1e-5


@pytest.mark.ci
def test_a_processor_without_bfloat16_is_refused_at_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check the engine would silently compute in float32."""
    _, program = program_of(Case())
    engine.OpenVino().compile(program, None, tmp_path)
    (tmp_path / "precision.json").write_text(json.dumps({"precision": "bfloat16"}))
    core = Mock(wraps=engine._core(), get_property=Mock(return_value=SINGLE))
    monkeypatch.setattr(engine, "_core", lambda: core)

    with pytest.raises(CompileError, match="no instructions for bfloat16"):
        engine.OpenVino().compile(program, None, tmp_path / "other", CompileSettings("bfloat16"))
    with pytest.raises(LoadError, match=r"no instructions for bfloat16.*without precision: bfloat16"):
        engine.OpenVino().load(tmp_path, weights_of(program), {}, 1)


def test_only_an_engine_that_says_so_computes_in_bfloat16() -> None:
    asked = {name: precision_of(get_backend(name), "bfloat16") for name in ("inductor", "onnxruntime", "eager")}

    assert set(asked.values()) == {"float32"}
    assert precision_of(get_backend("openvino"), "bfloat16") == "bfloat16"
    assert precision_of(get_backend("openvino"), "float32") == "float32"


def test_the_yaml_and_the_engines_name_the_same_precisions() -> None:
    written = NeuronLstmBlock.model_json_schema()["properties"]["precision"]["enum"]

    assert tuple(written) == get_args(Precision)


@pytest.mark.ci
def test_a_program_of_known_sizes_is_right_or_refused(tmp_path: Path) -> None:
    """The engine gave other answers for static sizes in a program of several GRUs: this is never silent."""
    case = Case("gru", layers=3, bidirectional=True, given_state=True)
    module, inputs = Several((case, case), rows=1000), several_inputs(0.0)
    program = exported(module, *inputs)
    backend = get_backend("openvino")
    refusal = None
    try:
        backend.compile(specialize(program, Bucket(BATCH, TIME)), None, tmp_path)
    except CompileError as error:
        refusal = str(error)
    if refusal is not None:
        assert "at fixed sizes its outputs differ from the program's" in refusal
        return
    run = backend.load(tmp_path, weights_of(program), backend.host(), 1)
    with torch.no_grad():
        assert largest_error(run(inputs), module.alone(inputs)) < 1e-5

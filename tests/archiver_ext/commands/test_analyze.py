import json
from typing import Any

import pytest
from printed import Capture, printed

from torchserve_neuron_lstm.archiver_ext import cli
from torchserve_neuron_lstm.backends import registry

from ..conftest import Project

BESSEL = (
    "        return self.head(answers), state[-1]",
    "        odd = torch.special.bessel_j0(answers)\n        return self.head(odd), torch.special.bessel_j0(state[-1])",
)
COMMAND = ["analyze", "--model-file", "model.py", "--config-file", "model-config.yaml"]


@pytest.fixture
def odd(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A model with an operator, on two lines, that ONNX does not have."""
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("COLUMNS", "200")
    text = (project.folder / "model.py").read_text()
    assert BESSEL[0] in text
    (project.folder / "model.py").write_text(text.replace(*BESSEL))
    return project


def told(capsys: Capture, *more: str) -> dict[str, dict[str, Any]]:
    return {one["backend"]: one for one in json.loads(printed(capsys, *COMMAND, "--json", *more))}


@pytest.mark.ci
@pytest.mark.usefixtures("odd")
def test_unsupported_operators_come_with_the_lines_of_the_users_model(capsys: Capture) -> None:
    (found,) = told(capsys, "--backend", "onnxruntime").values()
    assert found["unsupported_operators"] == [
        {
            "kind": "aten::special_bessel_j0",
            "failureAt": "list of operators",
            "call": f"model.py:{line}",
            "reason": "the exporter has no translation for the operator prims::bessel_j0",
        }
        for line in (
            "20: odd = torch.special.bessel_j0(answers)",
            "21: return self.head(odd), torch.special.bessel_j0(state[-1])",
        )
    ]
    assert found["supported_operators"]["aten"]["aten::lstm"] == 1
    assert found["supported_operators"]["aten"]["aten::linear"] == 1
    taken = sum(sum(library.values()) for library in found["supported_operators"].values())
    assert found["support_percentage"] == f"{100 * taken / (taken + 2):.2f}%"


@pytest.mark.ci
@pytest.mark.usefixtures("odd")
def test_every_engine_is_asked_unless_some_are_named(capsys: Capture) -> None:
    found = told(capsys)
    assert set(found) >= {"inductor", "onnxruntime", "openvino", "neuronx", "neuron", "vollo", "eager"}
    assert found["eager"]["support_percentage"] == "100.00%"
    assert found["neuronx"]["unsupported_operators"]
    for one in found.values():
        assert one["not_installed"] == registry.get_backend(one["backend"]).unavailable()
    assert list(told(capsys, "--backend", "eager", "--backend", "inductor")) == ["eager", "inductor"]


@pytest.mark.ci
@pytest.mark.usefixtures("odd")
def test_people_get_tables_and_what_to_do(capsys: Capture) -> None:
    out = printed(capsys, *COMMAND, "--backend", "onnxruntime", "--backend", "neuronx")
    assert "model.py:20: odd = torch.special.bessel_j0(answers)" in out
    assert "partitioner_config: {}" in out
    assert "neuronx cannot be used here: " in out


@pytest.mark.ci
def test_a_model_that_every_engine_takes_needs_no_advice(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(project.folder)
    out = printed(capsys, *COMMAND, "--backend", "onnxruntime", "--serialized-file", "weights.pt")
    assert "100.0 %" in out
    assert "partitioner_config" not in out


@pytest.mark.few(2)
@pytest.mark.usefixtures("odd")
@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--backend", "nobody"], "there is no backend 'nobody'"),
        (["--serialized-file", "nowhere.pt"], "there is no file nowhere.pt"),
        (["--model-file", "nowhere.py"], "there is no file nowhere.py"),
        (["--config-file", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_a_wrong_call_ends_with_1(more: list[str], text: str, capsys: Capture) -> None:
    assert cli.main([*COMMAND, *more]) == 1
    out, error = capsys.readouterr()
    assert text in error
    assert out == ""


@pytest.mark.ci
def test_what_the_yaml_leaves_out_of_the_analysis_is_left_out(odd: Project, capsys: Capture) -> None:
    ignoring = "{analyze_parameters: {additional_ignored_ops: ['aten::special_bessel_j0']}}"
    text = (odd.folder / "model-config.yaml").read_text().replace("eager", "onnxruntime")
    (odd.folder / "model-config.yaml").write_text(f"{text}  partitioner_config: {ignoring}\n")
    (found,) = told(capsys, "--backend", "onnxruntime").values()
    assert found["support_percentage"] == "100.00%"

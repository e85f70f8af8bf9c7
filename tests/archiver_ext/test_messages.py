"""Mistakes of a first try are told in words, with a way out that works."""

from pathlib import Path

import pytest
from printed import Capture, printed, refusal

from torchserve_neuron_lstm.archiver_ext import model_archiver
from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.model_class import importable, load_class

from .conftest import CONFIG, Project

LAYERS = "import torch\nclass Block(torch.nn.Linear):\n    pass\n"
MODEL_OF_PARTS = "import torch\nfrom {module} import Block\nclass Whole(torch.nn.Module):\n    pass\n"


def loaded(folder: Path, *more: str) -> str:
    staged = folder / "staged"
    staged.mkdir(exist_ok=True)
    words = ["--model-name", "tiny", "--version", "1.0", "--handler", "neuron_lstm", "--model-file", "model.py"]
    tree = model_archiver.stage(model_archiver.parse([*words, *more]), staged)
    with importable(tree):
        return load_class(tree / "model.py").__name__


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "myproject").mkdir()
    (tmp_path / "myproject" / "__init__.py").touch()
    (tmp_path / "myproject" / "layers.py").write_text(LAYERS)
    return tmp_path


def test_a_package_of_ones_own_goes_into_a_folder_for_extra_files(folder: Path) -> None:
    (folder / "model.py").write_text(MODEL_OF_PARTS.format(module="myproject.layers"))
    with pytest.raises(PackagingError, match="give --extra-files parts"):
        loaded(folder, "--extra-files", "myproject/")

    (folder / "parts").mkdir()
    (folder / "myproject").rename(folder / "parts" / "myproject")
    assert loaded(folder, "--extra-files", "parts") == "Whole"


def test_a_relative_import_is_told_both_ways_out(folder: Path) -> None:
    relative = MODEL_OF_PARTS.format(module=".layers")
    (folder / "model.py").write_text(relative)
    with pytest.raises(PackagingError, match=r"from layers import Block.*class Model\(Net\): pass"):
        loaded(folder)

    (folder / "model.py").write_text(relative.replace("from .layers", "from layers"))
    assert loaded(folder, "--extra-files", "myproject/layers.py") == "Whole"

    (folder / "parts").mkdir()
    (folder / "myproject" / "model.py").write_text(relative)
    (folder / "myproject").rename(folder / "parts" / "myproject")
    (folder / "model.py").write_text("from myproject.model import Whole\nclass Model(Whole): pass\n")
    assert loaded(folder, "--extra-files", "parts") == "Model"


@pytest.mark.parametrize(("name", "near"), [("onnx", "onnxruntime"), ("tensorrt", ""), ("inducter", "inductor")])
def test_an_unknown_backend_is_no_valid_configuration(folder: Path, capsys: Capture, name: str, near: str) -> None:
    text = CONFIG.format(backend=name, hidden=6, batch=[1], length=[2, 4], longest=4)
    (folder / "model-config.yaml").write_text(text)

    error = refusal(capsys, "verify-config", "model-config.yaml")

    line = 1 + text[: text.index("backend")].count("\n")
    assert f"model-config.yaml:{line}: neuron_lstm.backend: there is no backend '{name}'" in error
    assert f"(did you mean {near}?)" in error if near else "did you mean" not in error
    assert "native, inductor" in error


@pytest.mark.parametrize("name", ["auto", "native", "neuronx"])
def test_every_backend_of_the_registry_is_valid_where_not_installed(folder: Path, capsys: Capture, name: str) -> None:
    """A configuration may be checked on another machine than the one that packages."""
    text = CONFIG.format(backend=name, hidden=6, batch=[1], length=[2, 4], longest=4)
    (folder / "model-config.yaml").write_text(text)

    assert "valid" in printed(capsys, "verify-config", "model-config.yaml")


def test_our_handler_with_a_hyphen_is_told_to_have_an_underscore(project: Project) -> None:
    done = project.archive(handler="neuron-lstm")

    assert done.returncode == 1
    assert "write --handler neuron_lstm" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (project.folder / "tiny.mar").exists()

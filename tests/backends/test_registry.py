"""Finding engines by name: ours, and those of other distributions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from recurrent import Case, Recurrent, exported, ragged_batch

from torchserve_neuron_lstm.backends import registry
from torchserve_neuron_lstm.backends.interface import LoadError
from torchserve_neuron_lstm.backends.signature import weights_of

THIRD_PARTY = '''
from torchserve_neuron_lstm.backends.eager import Eager


class Doubling(Eager):
    """Everything twice, so that one can tell who answered."""
    name = "doubling"

    def load(self, directory, weights, host, threads):
        run = super().load(directory, weights, host, threads)
        return lambda inputs: [2 * output for output in run(inputs)]
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A distribution with two backends, one of which cannot be imported; the name of its module."""
    module = f"third_party_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(THIRD_PARTY)
    info = tmp_path / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{registry.ENTRY_POINT_GROUP}]\ndoubling = {module}:Doubling\nbroken = {module}:Missing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return module


def test_ours_are_found_by_name() -> None:
    """Each of our engines calls itself what it is asked for by."""
    assert set(registry.backend_names()) >= {"native", "inductor", "onnxruntime", "eager"}
    for name in ("native", "inductor", "onnxruntime", "eager"):
        assert name == registry.get_backend(name).name


def test_an_unknown_name_is_answered_by_what_there_is() -> None:
    """The refusal lists every backend and says how others are found."""
    with pytest.raises(LoadError, match=r"no backend 'tensorrt' here, but native, inductor, .*, eager.*entry point"):
        registry.get_backend("tensorrt")


@torch.no_grad()
def test_another_distribution_adds_one(installed: str, tmp_path: Path) -> None:
    """A class behind an entry point compiles and serves like one of ours."""
    module = Recurrent(Case())
    program = exported(module, *ragged_batch(0.0))
    backend = registry.get_backend("doubling")
    directory = tmp_path / "program"
    directory.mkdir()
    backend.compile(program, None, directory)
    answers = backend.load(directory, weights_of(program), backend.host(), 1)(ragged_batch(0.0))

    assert "doubling" in registry.backend_names()
    assert type(backend).__module__ == installed
    for ours, theirs in zip(answers, module(*ragged_batch(0.0)), strict=True):
        torch.testing.assert_close(ours, 2 * theirs)


@pytest.mark.usefixtures("installed")
def test_a_broken_distribution_is_named() -> None:
    """An entry point that leads nowhere is reported with the distribution it came from."""
    with pytest.raises(LoadError, match=r"'broken' of third-party cannot be imported: AttributeError"):
        registry.get_backend("broken")


def test_an_archive_leaves_the_other_engines_out() -> None:
    """The files of all engines but one, so that an archive carries one; and eager, which runs what that leaves out."""
    out = left_out("onnxruntime")

    assert {
        "native/engine.py",
        "native/library.py",
        "inductor.py",
        "openvino.py",
        "vollo/engine.py",
        "vollo/translate.py",
    } <= out
    assert not {"onnxruntime.py", "eager.py", "cpp_compiler.py", "partitioning/backend.py"} & out
    assert left_out("doubling") == {*out, "onnxruntime.py"}


def test_an_archive_keeps_the_folder_that_its_engine_needs() -> None:
    """And only that one."""
    out = left_out("native")

    assert {"inductor.py", "onnxruntime.py", "vollo/translate.py"} <= out
    assert not {file for file in out if file.startswith("native")}


def left_out(name: str) -> set[str]:
    """The files that an archive for an engine does without, by their paths below `backends`."""
    return {file.relative_to(registry._HERE).as_posix() for file in registry.files_of_others(name)}


def test_asking_for_one_imports_no_other() -> None:
    """The registry reads no engine's file before it is asked for: on a host the others are not there."""
    code = (
        "import sys; from torchserve_neuron_lstm.backends.registry import get_backend; "
        "before = [name for name in sys.modules if name.startswith('torchserve_neuron_lstm.backends.')]; "
        "get_backend('eager'); print(sorted(before), [name for name in sys.modules if name.endswith('.onnxruntime')])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert printed == ("['torchserve_neuron_lstm.backends.interface', 'torchserve_neuron_lstm.backends.registry'] []\n")

"""The import hook: for one program and one handler only, and never silent."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from torchserve_neuron_lstm.archiver_ext import hook

from .conftest import Project

PTH = Path(__file__).resolve().parents[2] / "archiver_ext" / "torchserve_neuron_lstm.pth"
WITHOUT_HOOK = "from model_archiver.model_packaging import generate_model_archive as go; go()"
OURS = "import sys; print([name for name in sys.modules if 'neuron_lstm' in name])"


@pytest.mark.parametrize("handler", ["text_classifier", "my_handler.py", "my_handler:run"])
def test_other_handlers_are_archived_as_without_the_hook(project: Project, handler: str) -> None:
    (project.folder / "my_handler.py").write_text("def run(data, context):\n    return data\n")
    flags = [*project.flags(), "--handler", handler]

    hooked = project.run("torch-model-archiver", *flags, "--export-path", made(project.folder / "a"))
    plain = project.run("python", "-c", WITHOUT_HOOK, *flags, "--export-path", made(project.folder / "b"))

    assert (hooked.returncode, hooked.stdout, hooked.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert content(project.folder / "a" / "tiny.mar") == content(project.folder / "b" / "tiny.mar")


def made(folder: Path) -> str:
    folder.mkdir()
    return str(folder)


def content(archive: Path) -> dict[str, Any]:
    with zipfile.ZipFile(archive) as file:
        files: dict[str, Any] = {entry.filename: (entry.compress_type, file.read(entry)) for entry in file.infolist()}
    manifest = json.loads(files.pop("MAR-INF/MANIFEST.json")[1])
    assert manifest.pop("createdOn")
    return {**files, "MANIFEST": manifest}


def test_the_failures_of_other_handlers_are_the_archivers_own(project: Project) -> None:
    done = project.archive(handler="nowhere")

    assert done.returncode == 1
    assert "FileNotFoundError" in done.stderr
    assert "torchserve_neuron_lstm/archiver_ext/package" not in done.stderr


def test_other_programs_import_nothing_of_ours(tmp_path: Path) -> None:
    assert started_as(tmp_path / "other-program", OURS) == "[]"


def test_the_archiver_imports_the_hook_and_no_more(tmp_path: Path) -> None:
    """The check above can fail: a program called torch-model-archiver imports the hook, and only the hook."""
    program = "import sys; print([n for n in sys.modules if n == 'torch' or n.startswith('torchserve_neuron_lstm.')])"
    names = started_as(tmp_path / "torch-model-archiver", program)

    assert names == "['torchserve_neuron_lstm.archiver_ext', 'torchserve_neuron_lstm.archiver_ext.hook']"


def test_a_pth_that_runs_twice_hooks_once(tmp_path: Path) -> None:
    program = (
        f"import os, sys; [exec(open({str(PTH)!r}).read()) for _ in range(2)];"
        "import model_archiver.model_packaging as m;"
        "print(sum(type(finder).__module__.endswith('archiver_ext.hook') for finder in sys.meta_path),"
        "m.package_model._neuron_lstm_wrapped)"
    )
    assert started_as(tmp_path / "torch-model-archiver", program) == "1 True"


def started_as(program: Path, code: str) -> str:
    program.write_text(code)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize(("asked", "code"), [("neuron_lstm", 1), ("text_classifier", 0)])
def test_a_hook_that_cannot_be_installed_says_so(asked: str, code: int) -> None:
    words = ["torch-model-archiver", "--handler", asked]
    program = f"import os, sys; sys.argv = {words}; exec(open({str(PTH)!r}).read())"

    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == code
    assert "cannot extend torch-model-archiver: ModuleNotFoundError" in done.stderr


def test_our_handler_is_packaged_here_and_its_failure_is_the_exit_code() -> None:
    archiver = fake_archiver()
    hook.wrap(archiver, archive=lambda config, manifest: int(config.code))

    assert archiver.package_model(SimpleNamespace(handler="neuron_lstm", code=0), "{}") is None
    assert archiver.package_model(SimpleNamespace(handler="other"), manifest="{}") == ("stock", "other", "{}")
    with pytest.raises(SystemExit) as ended:
        archiver.package_model(SimpleNamespace(handler="neuron_lstm", code=3), manifest="{}")
    assert ended.value.code == 3


def fake_archiver() -> Any:
    module = ModuleType("model_archiver.model_packaging")
    module.package_model = lambda config, manifest: ("stock", config.handler, manifest)  # type: ignore[attr-defined]  # a module may have any name
    return module


def test_an_unsupported_archiver_fails_for_our_handler_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["torch-model-archiver", "--handler", "image_classifier"])
    hook.wrap(ModuleType("model_archiver.model_packaging"))
    assert "has no package_model" in capsys.readouterr().err

    monkeypatch.setattr(sys, "argv", ["torch-model-archiver", "--handler=neuron_lstm"])
    with pytest.raises(SystemExit, match="has no package_model"):
        hook.wrap(ModuleType("model_archiver.model_packaging"))

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import odd_engines
import pytest
from python_path import python_path
from running import is_running
from waiting import wait_for

from .conftest import BIN, MODEL, Package, Project, save_weights


def no_config(project: Project) -> list[str]:
    (project.folder / "model-config.yaml").unlink()
    return []


def bad_config(project: Project) -> list[str]:
    (project.folder / "model-config.yaml").write_text("batchSize: many\nneuron_lstm: {}\n")
    return []


def packed_answer(project: Project) -> list[str]:
    (project.folder / "model.py").write_text(MODEL.replace("self.head(answers), state[-1]", "packed.data"))
    return []


def name_of_another_module(project: Project) -> list[str]:
    packed_answer(project)
    (project.folder / "model.py").rename(project.folder / "random.py")
    return ["--model-file", "random.py"]


def names_of_classes(project: Project) -> list[str]:
    (project.folder / "index_to_name.json").write_text('{"0": "a", "1": "b", "2": "c"}')
    return ["--extra-files", "index_to_name.json"]


def names_of_classes_of_own_code(project: Project) -> list[str]:
    file = project.folder / "model-config.yaml"
    file.write_text(f"{file.read_text()}  lowering: off\n")
    return names_of_classes(project)


def other_weights(project: Project) -> list[str]:
    save_weights(project, hidden=7)
    return []


def taken_name(project: Project) -> list[str]:
    (project.folder / "variants.json").write_text("{}")
    return ["--extra-files", "variants.json"]


def same_name_twice(project: Project) -> list[str]:
    (project.folder / "more").mkdir()
    (project.folder / "more" / "model.py").write_text("# another")
    return ["--extra-files", "more"]


FAILURES: list[tuple[Callable[[Project], list[str]], str]] = [
    (no_config, "--config-file: there is no file model-config.yaml"),
    (bad_config, "model-config.yaml:1: batchSize"),
    (packed_answer, "model.py:"),
    (name_of_another_module, "random.py has the name of a library, which servers import: rename it"),
    (names_of_classes, "index_to_name.json: class names need a model with one output"),
    (names_of_classes_of_own_code, "index_to_name.json: class names need a model with one output, one"),
    (other_weights, "lstm.weight_hh_l0: the model has [24, 6], the file [28, 7]"),
    (taken_name, "variants.json would replace a file"),
    (same_name_twice, "model.py: another file of that name"),
    (lambda project: ["--extra-files", "nowhere.txt"], "--extra-files: there is no file or folder nowhere.txt"),
    (lambda project: ["--extra-files", "model.py, b.txt"], "no file or folder b.txt: write the commas without blanks"),
    (lambda project: ["--requirements-file", "nowhere.txt"], "--requirements-file: there is no file nowhere.txt"),
    (lambda project: ["--export-path", "nowhere"], "nowhere is not a directory"),
    (lambda project: ["--model-name", "a/b"], "special characters"),
    (lambda project: ["--runtime", "LSP"], "--runtime LSP"),
]


@pytest.mark.parametrize(("spoil", "complaint"), FAILURES, ids=[complaint for _, complaint in FAILURES])
def test_a_refusal_is_one_message_and_leaves_nothing(
    project: Project, package: Package, spoil: Callable[[Project], list[str]], complaint: str
) -> None:
    more = spoil(project)
    before = project.listing()

    code, output, error = package(*more)

    assert (code, output) == (1, "")
    assert complaint in error
    assert error.count("error:") == 1
    assert "Traceback" not in error
    assert project.listing() == before


@pytest.mark.ci
def test_a_model_that_ends_the_process_is_told(project: Project) -> None:
    (project.folder / "model.py").write_text(f"import os\nos._exit(0)\n{MODEL}")
    files = ("--model-file", "model.py", "--serialized-file", "weights.pt", "--config-file", "model-config.yaml")
    done = project.run("neuron-lstm", "archive", "--model-name", "m", "--version", "1.0", *files)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("error: the model's code ended the process (os._exit); nothing was written\n")


@pytest.mark.parametrize(
    ("engine", "complaint"),
    [
        ("dies", "ended by SIGABRT"),
        ("unusable", "no such chip here; buy one"),
        ("absent", "there is no backend 'absent'"),
    ],
)
def test_a_named_engine_that_fails_stops_the_packaging(
    project: Project, package: Package, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: str, complaint: str
) -> None:
    odd_engines.use(monkeypatch, tmp_path / "site")
    project.configure(backend=engine)
    before = project.listing()

    code, output, error = package()

    assert (code, output) == (1, "")
    assert re.search(complaint, error)
    assert project.listing() == before


@pytest.mark.ci
def test_a_wrong_result_is_reported_for_every_bucket(
    project: Project, package: Package, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    odd_engines.use(monkeypatch, tmp_path / "site")
    project.configure(backend="wrong")
    before = project.listing()

    code, output, error = package()

    assert (code, output, project.listing()) == (1, "", before)
    assert "in 2 of 4 buckets" in error
    rows = [line.split() for line in error.splitlines() if line.startswith("  ") and " x " in line]
    assert [(row[:3], row[3]) for row in rows] == [
        (["1", "x", "2"], "passed"),
        (["1", "x", "4"], "passed"),
        (["2", "x", "2"], "failed"),
        (["2", "x", "4"], "failed"),
    ]
    # the carry is wrong too, so that a second chunk has a larger error than the first
    assert 0.00999 <= float(rows[2][4]) < 0.1


@pytest.mark.parametrize(("error", "is_bug"), [(MemoryError(), False), (ZeroDivisionError("by zero"), True)])
def test_an_unexpected_error_is_shown_with_its_traceback_but_for_memory_that_does_not_suffice(
    project: Project, package: Package, monkeypatch: pytest.MonkeyPatch, error: Exception, is_bug: bool
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("torchserve_neuron_lstm.archiver_ext.package.lower", fail)
    before = project.listing()

    code, _, told = package()

    assert code == 1
    assert ("Traceback" in told) == ("This is a bug" in told) == is_bug
    assert is_bug or told.splitlines()[-1] == "error: out of memory"
    assert project.listing() == before


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_stopped_command_leaves_nothing(project: Project, tmp_path: Path, number: signal.Signals) -> None:
    project.configure(backend="slow")
    pids = tmp_path / "pids"
    before = project.listing()
    with stopped_while_compiling(project, tmp_path, pids, number) as process:
        _, error = process.communicate(timeout=30)

    assert process.returncode == 128 + number
    assert error.strip().endswith(f"stopped by {number.name}; no file was written")
    assert project.listing() == before
    started = [int(pid) for pid in pids.read_text().split()]
    wait_for(lambda: not any(map(is_running, started)))


@contextmanager
def stopped_while_compiling(
    project: Project, folder: Path, pids: Path, number: signal.Signals
) -> Iterator[subprocess.Popen[str]]:
    """The standard command, sent a signal as soon as a compiler runs; killed in the end.

    Compilers write their process ids to `pids`.
    """
    command = [str(BIN / "torch-model-archiver"), *project.flags(), "--handler", "neuron_lstm"]
    env = project.environment(PYTHONPATH=python_path(odd_engines.install(folder / "site")), SLOW_PIDS=str(pids))
    with subprocess.Popen(command, cwd=project.folder, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            end = time.monotonic() + 90
            while not (pids.exists() and pids.read_text().endswith("\n")):
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.05)
            process.send_signal(number)
            yield process
        finally:
            process.kill()


@pytest.mark.ci
def test_a_program_that_kills_its_process_is_told_and_cleaned_up(project: Project, tmp_path: Path) -> None:
    project.configure(backend="crashes")
    before = project.listing()

    done = project.archive(PYTHONPATH=python_path(odd_engines.install(tmp_path / "site")))

    assert done.returncode == 1
    assert "error: the process was ended by SIGSEGV while packaging" in done.stderr
    assert project.listing() == before


@pytest.mark.ci
def test_a_killed_command_takes_the_packaging_with_it(project: Project, tmp_path: Path) -> None:
    project.configure(backend="slow")
    pids = tmp_path / "pids"
    with stopped_while_compiling(project, tmp_path, pids, signal.SIGKILL) as process:
        process.communicate(timeout=30)

    started = [int(pid) for pid in pids.read_text().split()]
    wait_for(lambda: not any(map(is_running, started)))
    assert not (project.folder / "tiny.mar").exists()

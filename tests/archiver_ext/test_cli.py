import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from printed import Capture, misuse, printed, refusal

from torchserve_neuron_lstm.archiver_ext import cli

from .conftest import Project


@pytest.fixture(autouse=True)
def _in_the_folder(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)


def test_help_is_shown_without_importing_torch() -> None:
    program = (
        "import sys\nfrom torchserve_neuron_lstm.archiver_ext.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n"
        "    print(end.code, [name for name in ('torch', 'yaml', 'rich', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "archive" in done.stdout
    assert done.stdout.strip().endswith("0 []")


def test_a_wrong_command_line_ends_with_2(capsys: Capture) -> None:
    for arguments in ([], ["frobnicate"], ["init", "--model-file", "m", "--args", "=3"]):
        assert "usage" in misuse(capsys, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model-name", "a"], "the following arguments are required: -v/--version"),
        (["--version", "1"], "the following arguments are required: --model-name"),
        (["--model-name", "a", "--version", "1", "--modle-file", "m"], "unrecognized arguments: --modle-file m"),
        (["--model-name", "a", "--version", "1", "--runtime", "c"], "argument --runtime: invalid choice: 'c'"),
    ],
)
def test_a_wrong_command_line_of_packaging_is_one_line(capsys: Capture, arguments: list[str], message: str) -> None:
    assert cli.main(["archive", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {message}")
    assert line.endswith("`neuron-lstm archive --help` shows a command and all options")


def test_the_version_is_that_of_the_package(capsys: Capture) -> None:
    assert printed(capsys, "--version") == f"neuron-lstm {version('torchserve-neuron-lstm')}\n"


def test_the_help_of_packaging_begins_with_the_usual_command(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        cli.main(["archive", "--help"])
    usual, _, options = capsys.readouterr().out.partition("usage: torch-model-archiver")
    assert "neuron-lstm archive --model-name tagger --version 1.0" in usual
    assert "--serialized-file" in options


def test_another_handler_is_refused(capsys: Capture, project: Project) -> None:
    assert cli.main(["archive", *project.flags(), "--handler", "image_classifier"]) == 2
    assert "image_classifier" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["inspect no.mar", "archive --model-name a --version 1 --model-file no.py"])
def test_a_wrong_path_is_refused_without_torch(project: Project, words: str) -> None:
    """Torch alone takes seconds to import."""
    code = f"import sys\nfrom torchserve_neuron_lstm.archiver_ext.cli import main\nprint(main({words.split()}))\n"
    done = project.run("python", "-c", f"{code}print('torch' in sys.modules)")
    assert (done.stdout, done.returncode) == ("1\nFalse\n", 0), done.stderr
    assert re.search("there is no (archive|file) no.", done.stderr)


def test_the_schema_is_json(capsys: Capture) -> None:
    assert "neuron_lstm" in json.loads(printed(capsys, "schema"))["properties"]


def test_a_config_is_checked_by_itself(capsys: Capture, project: Project) -> None:
    assert printed(capsys, "verify-config", "model-config.yaml") == "model-config.yaml: valid, 4 buckets\n"
    (project.folder / "model-config.yaml").write_text(
        "batchSize: many\nasyncCommunication: true\nneuron_lstm: {inputs: {}, backend: natve}\n"
    )
    error = refusal(capsys, "verify-config", "model-config.yaml")
    for told in (
        ":1: batchSize",
        ":2: asyncCommunication: leave it out",
        "no backend 'natve' (did you mean native",
        "buckets",
    ):
        assert told in error


def test_init_writes_a_config_that_is_good(capsys: Capture, project: Project) -> None:
    assert (
        cli.main(["init", "--model-file", "model.py", "--args", "hidden=8", "--longest", "64", "-o", "new.yaml"]) == 0
    )
    assert "--model-file model.py --serialized-file WEIGHTS.pt --config-file new.yaml" in capsys.readouterr().err
    assert cli.main(["verify-config", "new.yaml"]) == 0
    assert "hidden" in (project.folder / "new.yaml").read_text()
    assert "new.yaml exists; give --force" in refusal(capsys, "init", "--model-file", "model.py", "-o", "new.yaml")
    assert "there is no file nowhere.py" in refusal(capsys, "init", "--model-file", "nowhere.py")


@pytest.mark.ci
@pytest.mark.parametrize(
    "archive_format", ["default", *(pytest.param(name, marks=pytest.mark.long) for name in ("tgz", "no-archive"))]
)
def test_an_archive_says_what_is_in_it(capsys: Capture, project: Project, archive_format: str) -> None:
    printed(capsys, "archive", *project.flags(), "--export-path", ".", "--archive-format", archive_format)
    name = {"default": "tiny.mar", "tgz": "tiny.tar.gz", "no-archive": "tiny"}[archive_format]

    told = printed(capsys, "inspect", name)
    assert told.startswith("model       tiny, version 1.0\n")
    assert "ids: int64[batch, time]" in told
    assert "2 x 4" in told
    assert json.loads(printed(capsys, "inspect", name, "--json"))["backend"] == "eager"


def run_into(output: int, *arguments: str, **environment: str) -> tuple[int, bytes, bytes]:
    """The exit code of a command whose standard output is a descriptor, and what it wrote."""
    command = [sys.executable, "-m", cli.__name__, *arguments]
    variables = {**os.environ, **environment}
    done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, env=variables, check=False)
    return done.returncode, done.stdout or b"", done.stderr


@pytest.mark.few(1)
@pytest.mark.parametrize("arguments", [("schema",), ("verify-config", "model-config.yaml")])
def test_a_reader_that_ends_early_is_named_in_one_line(arguments: tuple[str, ...]) -> None:
    reader, output = os.pipe()
    os.close(reader)
    code, _, error = run_into(output, *arguments)
    os.close(output)

    assert (code, error) == (1, b"error: the reader of standard output ended before everything was written\n")


@pytest.mark.few(1)
@pytest.mark.parametrize("arguments", [("schema",), ("verify-config", "model-config.yaml")])
def test_a_full_disk_below_standard_output_is_one_line(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        code, _, error = run_into(full.fileno(), *arguments)

    assert code == 1
    assert b"standard output" in error
    assert b"no space left on device" in error
    assert error.count(b"\n") == 1


@pytest.mark.parametrize(
    "arguments", ["schema", "verify-config model-config.yaml", "archive --model-name a --version 1"]
)
def test_a_closed_standard_output_is_one_line(arguments: str) -> None:
    """As with `>&-` in a shell: nothing is written to whichever file has its descriptor."""
    command = f"exec {sys.executable} -m {cli.__name__} {arguments} >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr == "error: standard output is closed: redirect it to a file, or to /dev/null\n"


def test_an_exception_that_is_no_error_is_one_line(capsys: Capture, project: Project) -> None:
    (project.folder / "model.py").write_text("class Own(BaseException): pass\nraise Own('stop')\n")

    (line,) = refusal(capsys, "init", "--model-file", "model.py", "-o", "new.yaml").splitlines()
    assert line.startswith("error: model.py, line 2, raised Own: stop. It is no subclass of Exception")


@pytest.mark.ci
def test_what_an_encoding_lacks_is_escaped(project: Project) -> None:
    assert project.archive().returncode == 0
    name = os.fsdecode(b"\xfc.mar")
    (project.folder / "tiny.mar").rename(project.folder / name)
    code, told, error = run_into(subprocess.PIPE, "inspect", name, COLUMNS="40", PYTHONIOENCODING="ascii")

    assert (code, error) == (0, b"")
    assert b"\\u2026" in told

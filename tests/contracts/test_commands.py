"""The command line and the YAML: names of commands, options, arguments and keys, and exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

import pytest
from python_path import python_path

from torchserve_neuron_lstm.archiver_ext.cli import main

from .conftest import call
from .projects import ARCHIVER, DATA, environment_of, run, write_project
from .shapes import arguments, flags, keys, schema_facts

COMMANDS = json.loads((DATA / "commands.json").read_text())
KEYS = json.loads((DATA / "keys.json").read_text())
ENGINE = """
from torchserve_neuron_lstm.backends.interface import DEFAULTS, CannotCompile, CannotLoad, CompileSettings, Requirement


class Twin:
    name = "twin"
    polymorphic = True
    any_shape = True
    precisions = ("float32",)
    options = ()

    def unavailable(self):
        return None

    def requirements(self):
        return (Requirement("torch", "torch", "2.13.0"),)

    def host(self):
        return {}

    def refusal(self, node):
        return "not today" if "linear" in str(node.target) else None

    def compile(self, program, bucket, directory, settings=DEFAULTS):
        raise CannotCompile("not today")

    def load(self, directory, weights, host, threads):
        raise CannotLoad("not today")
"""


def help_of(*words: str) -> str:
    """The output of `--help`."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setenv("COLUMNS", "300")
        with pytest.raises(SystemExit) as end:
            main([*words, "--help"])
    assert end.value.code in (0, None)
    return out.getvalue()


def test_the_commands_are_those_that_were_kept() -> None:
    """The order is that of `--help`."""
    listed = [line.split()[0] for line in help_of().splitlines() if line.startswith("    ")]
    assert [name for name in listed if name in COMMANDS] == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_the_options_that_were_kept(command: str) -> None:
    """The arguments are kept in order; additional options are recorded too."""
    text = help_of(command)
    assert {"flags": flags(text), "arguments": arguments(text)} == COMMANDS[command]


def test_analyze_says_it_with_the_same_keys(tmp_path: Path) -> None:
    """The keys are the same for an engine without gaps and for a third-party engine with gaps."""
    write_project("tagger_eager", tmp_path / "user")
    site = tmp_path / "site"
    info = site / "twin-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "twin_engine.py").write_text(ENGINE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: twin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torchserve_neuron_lstm.backends]\ntwin = twin_engine:Twin\n")
    words = "--model-file model.py --config-file model-config.yaml --backend eager --backend twin --json"
    command = [str(ARCHIVER.with_name("neuron-lstm")), "analyze", *words.split()]
    done = run(command, tmp_path / "user", {**environment_of("tagger_eager"), "PYTHONPATH": python_path(site)})

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [one["backend"] for one in told] == ["eager", "twin"]
    assert [one["reason"] for one in told[1]["unsupported_operators"]] == ["not today"] * 2
    assert [path for path in keys(told) if "::" not in path] == KEYS["analyze"]


def test_the_schema_is_the_one_that_was_kept() -> None:
    """Keys, types, defaults and choices of the YAML are kept; descriptions may change."""
    assert schema_facts(json.loads(call("schema"))) == json.loads((DATA / "schema.json").read_text())


def test_what_init_writes_is_good(tmp_path: Path) -> None:
    """The command verify-config accepts the file and prints the number of buckets."""
    write_project("tagger_eager", tmp_path / "user")
    file = tmp_path / "made.yaml"
    call("init", "--model-file", tmp_path / "user" / "model.py", "-o", file)
    assert call("verify-config", file) == f"{file}: valid, 16 buckets\n"


def test_a_refusal_exits_with_1_and_a_wrong_command_line_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refusal has one message and exit code 1; a wrong command line has exit code 2."""
    (tmp_path / "bad.yaml").write_text("neuron_lstm: {inputs: {}}\n")

    assert main(["verify-config", str(tmp_path / "bad.yaml")]) == 1
    assert main(["inspect", str(tmp_path / "missing.mar")]) == 1
    assert capsys.readouterr().err.count("error: ") == 2
    with pytest.raises(SystemExit) as end:
        main(["no-such-command"])
    assert end.value.code == 2


def test_the_entry_points_are_the_same_command() -> None:
    """The entry points are `neuron-lstm`, and the module run as a program."""
    told = [
        run([*command, "schema"], Path.cwd(), environment_of("tagger_eager")).stdout
        for command in (
            [str(ARCHIVER.with_name("neuron-lstm"))],
            [sys.executable, "-m", "torchserve_neuron_lstm.archiver_ext.cli"],
        )
    ]
    assert told[0] == told[1] != ""

"""Commands, programs and YAML of the documentation do what is shown."""

import doctest
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import torch
import yaml
from printed import Capture, printed
from shown import ROOT, blocks, page
from tiny_archive import as_mar, make_archive

import torchserve_neuron_lstm.config
from torchserve_neuron_lstm.archiver_ext.cli import _parser
from torchserve_neuron_lstm.backends import registry
from torchserve_neuron_lstm.config.histogram import read_lengths
from torchserve_neuron_lstm.config.load import load_config, parse_config
from torchserve_neuron_lstm.config.partitioner import PartitionerBlock
from torchserve_neuron_lstm.config.schema import ServingConfig
from torchserve_neuron_lstm.hosts.torchserve.properties import unknown_settings

ENGINE = ROOT / "tests" / "support" / "third_party_backend"
PARTITIONED = """
import torch


class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(6, 8, batch_first=True)
        self.out = torch.nn.Linear(8, 4)

    def forward(self, x):
        y, _ = self.lstm(x)
        y = torch.special.bessel_j0(y)
        return torch.sort(torch.log_softmax(self.out(y), -1))[0]
"""
PARTITIONED_CONFIG = """
neuron_lstm:
  inputs: {x: {dtype: float32, shape: [batch, time, 6]}}
  buckets: {batch: [2], length: [4]}
"""
TUNED_CONFIG = """\
neuron_lstm:
  inputs: {ids: {dtype: int64, shape: [batch, time]}}
  buckets:
    batch: [1, 8, 32]
    length: [16, 32, 64, 128, 256, 330]
"""


def shell(command: str, folder: Path) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONIOENCODING": "utf-8", "COLUMNS": "100"}
    words = ["bash", "-euo", "pipefail", "-c", command]
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(name: str, command: str) -> list[list[str]]:
    """The words of each line of a page with this command of ours."""
    lines = re.findall(rf"^neuron-lstm ({command} .*)$", page(name), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def with_keys(keys: str) -> ServingConfig:
    """The configuration of a model with these keys."""
    needed = "inputs: {x: {dtype: float32, shape: [batch, time, 3]}}\nbuckets: {batch: [1], length: [4]}\n"
    text = f"minWorkers: 1\nmaxWorkers: 1\nneuron_lstm:\n{indent(needed + keys, '  ')}"
    return parse_config(text, "model-config.yaml")


def test_bench_takes_the_options_that_are_shown() -> None:
    options = _parser().parse_args([*shown("benchmarks", "bench")[0], "--threads", "1", "--json"])

    assert (str(options.archive), str(options.lengths), options.batch) == ("tagger.mar", "lengths.txt", 32)


def test_serve_takes_the_commands_that_are_shown() -> None:
    commands = shown("serve", "serve")
    settings = [name for words in commands for name, _ in _parser().parse_args(words).set]

    assert len(commands) == 6
    assert unknown_settings(settings) == []


def test_the_command_copies_the_file_of_metrics(tmp_path: Path) -> None:
    shell(blocks(page("metrics"), "bash")[0], tmp_path)

    shipped = Path(torchserve_neuron_lstm.config.__path__[0]) / "metrics.yaml"
    assert (tmp_path / "metrics.yaml").read_bytes() == shipped.read_bytes()


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_block_of_tracing_does_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    examples = "\n".join(blocks(page("tracing"), "pycon"))
    test = doctest.DocTestParser().get_doctest(examples, {}, "docs/tracing.md", "docs/tracing.md", 0)
    told: list[str] = []

    found = doctest.DocTestRunner(optionflags=flags, verbose=False).run(test, out=told.append)

    assert found.attempted > 20
    assert found.failed == 0, "".join(told)


def test_the_python_example_answers_each_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ids are those of a larger vocabulary. The page's second example is one of sessions."""
    example, _ = blocks(page("python"), "python")
    as_mar(make_archive(tmp_path / "folder"), tmp_path / "tagger.mar")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}

    exec(example.replace("99", "9"), scope)

    assert [len(answer) for answer in scope["scores"]] == [3, 1]


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """A folder with the files that tuning reads."""
    shutil.copy(ROOT / "examples" / "lengths" / "lognormal.txt", tmp_path / "lengths.txt")
    (tmp_path / "model-config.yaml").write_text(TUNED_CONFIG)
    logs = tmp_path / "logs"
    logs.mkdir()
    line = "2026-03-04T05:06:07,008 [INFO ] W-9000-tagger_1.0-stdout MODEL_LOG - neuron_lstm lengths 3:20 12:1\n"
    (logs / "model_log.log").write_text(line + line.replace("tagger", "scorer"))
    for day in ("01", "02"):
        with gzip.open(logs / f"model_log.{day}.gz", "wt") as file:
            file.write(line)
    return tmp_path


@pytest.mark.ci
def test_the_commands_of_tuning_do_what_is_shown(tuned: Path) -> None:
    look, report, keep, older = blocks(page("tuning"), "bash")
    (told,) = blocks(page("tuning"), "text")

    assert shell(look, tuned) == told
    (tuned / "model-config.yaml").write_text(TUNED_CONFIG.rpartition("    length:")[0] + told.splitlines()[-1])
    assert len(load_config(tuned / "model-config.yaml").grid.lengths) == 8
    shell(report, tuned)
    assert (tuned / "padding.png").read_bytes().startswith(b"\x89PNG")
    shell(keep, tuned)
    assert read_lengths(tuned / "lengths.txt") == {3: 20, 12: 1}
    assert '"sequences": 42' in shell(older, tuned)


def test_the_yaml_of_tuning_is_read(tuned: Path) -> None:
    for block in blocks(page("tuning"), "yaml"):
        (tuned / "new.yaml").write_text(TUNED_CONFIG.partition("  buckets")[0] + indent(block, "  "))
        config = load_config(tuned / "new.yaml")
        promised = block.partition("#")[2].strip()
        assert len(config.grid.lengths) == 8
        assert promised in ("", str(list(config.grid.lengths))[1:-1])

    assert len(blocks(page("tuning"), "yaml")) == 2


def test_the_yaml_of_partitioning_is_read() -> None:
    (own, *_) = blocks(page("partitioning"), "yaml")
    config = parse_config(PARTITIONED_CONFIG + own.partition("\n")[2], "model-config.yaml")
    assert config.partitioner_config == PartitionerBlock()


@pytest.mark.ci
def test_what_analyze_prints_for_machines_is_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(PARTITIONED.lstrip())
    (tmp_path / "c.yaml").write_text(PARTITIONED_CONFIG)
    call = ["analyze", "--model-file", "model.py", "--config-file", "c.yaml", "--backend", "onnxruntime", "--json"]
    assert json.loads(printed(capsys, *call)) == json.loads(blocks(page("partitioning"), "json")[0])


@pytest.mark.parametrize("keys", blocks(page("neuron"), "yaml"))
def test_the_yaml_of_neuron_is_read(keys: str) -> None:
    assert with_keys(keys).backend in ("neuronx", "neuron")


def test_the_yaml_of_vollo_is_read() -> None:
    preset = (ROOT / "config" / "presets" / "vollo.yaml").read_text(encoding="utf-8")
    for text in (*blocks(page("vollo"), "yaml"), preset):
        config = parse_config(text, "model-config.yaml")

        assert (config.backend, config.precision) == ("vollo", "bfloat16")
        assert (config.tolerance.atol, config.tolerance.rtol) == (1e-2, 1e-2)
        assert config.compiler_args == ("--config", "bittware_ia840f_c3b64")
    assert "streaming" in yaml.safe_load(preset.replace("# streaming", "streaming"))["neuron_lstm"]


def test_the_yaml_of_engines_is_read() -> None:
    inductor, auto = blocks(page("backends"), "yaml")
    options, choice = with_keys(inductor), with_keys(auto)

    assert options.engine == "inductor"
    assert options.compiler_args == ("-O3", "-fno-semantic-interposition")
    assert set(yaml.safe_load(inductor)) - {"backend"} == set(registry.get_backend("inductor").options)
    assert choice.engine == "auto"
    assert choice.auto.engines == ("native", "inductor")


def test_the_example_of_an_engine_is_the_code_that_the_tests_install() -> None:
    package = ENGINE / "src" / "neuron_lstm_numpy"
    sources = {name: (package / f"{name}.py").read_text() for name in ("backend", "operators")}
    examples = blocks(page("backends"), "python")

    assert [block for block in examples if not any(block in source for source in sources.values())] == []
    methods = set(re.findall(r"^    def (\w+)", sources["backend"], re.MULTILINE))
    assert set(re.findall(r"^    def (\w+)", "".join(examples), re.MULTILINE)) == methods
    assert blocks(page("backends"), "toml")[0] in (ENGINE / "pyproject.toml").read_text()

"""The examples of docs/tuning.md work as shown."""

import gzip
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from shown import blocks
from tiny_archive import make_archive

from torchserve_neuron_lstm.backends.registry import ENGINES, get_backend
from torchserve_neuron_lstm.bucketing.bucket_lengths import clip_histogram, optimal_lengths, padding_stats
from torchserve_neuron_lstm.config.buckets import AutoLengths
from torchserve_neuron_lstm.config.histogram import read_lengths
from torchserve_neuron_lstm.config.load import load_config

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "tuning.md").read_text()
SAMPLE = ROOT / "examples" / "lengths" / "lognormal.txt"
CONFIG = """\
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(SAMPLE, tmp_path / "lengths.txt")
    (tmp_path / "model-config.yaml").write_text(CONFIG)
    make_archive(tmp_path / "tagger.mar", shapes="any")
    logs = tmp_path / "logs"
    logs.mkdir()
    line = "2026-03-04T05:06:07,008 [INFO ] W-9000-tagger_1.0-stdout MODEL_LOG - neuron_lstm lengths 3:20 12:1\n"
    (logs / "model_log.log").write_text(line + line.replace("tagger", "scorer"))
    for day in ("01", "02"):
        with gzip.open(logs / f"model_log.{day}.gz", "wt") as file:
            file.write(line)
    return tmp_path


@pytest.mark.ci
def test_the_commands_do_what_is_shown(folder: Path) -> None:
    look, report, keep, older = blocks(TEXT, "bash")
    (shown,) = blocks(TEXT, "text")

    assert shell(look, folder) == shown
    (folder / "model-config.yaml").write_text(CONFIG.rpartition("    length:")[0] + shown.splitlines()[-1])
    assert len(load_config(folder / "model-config.yaml").grid.lengths) == 8
    shell(report, folder)
    assert "<caption>Both grids</caption>" in (folder / "report.html").read_text()
    shell(keep, folder)
    assert read_lengths(folder / "lengths.txt") == {3: 20, 12: 1}
    assert '"sequences": 42' in shell(older, folder)


def test_the_configurations_are_good(folder: Path) -> None:
    for block in blocks(TEXT, "yaml"):
        indented = "".join(f"  {line}\n" for line in block.splitlines())
        (folder / "new.yaml").write_text(CONFIG.partition("  buckets")[0] + indented)
        config = load_config(folder / "new.yaml")
        promised = block.partition("#")[2].strip()
        assert len(config.grid.lengths) == 8
        assert promised in ("", str(list(config.grid.lengths))[1:-1])

    assert len(blocks(TEXT, "yaml")) == 2
    assert re.findall(r"^\| `(\w+)` \|", TEXT.partition("## Let packaging")[2], re.MULTILINE) == list(
        AutoLengths.model_fields
    )


def test_the_shares_are_right() -> None:
    histogram = clip_histogram(read_lengths(SAMPLE), 330, truncate=False)
    grids = ((16, 32, 64, 128, 256, 330), *(optimal_lengths(histogram, count) for count in (6, 8, 16)))
    generator = random.Random(1)
    fresh = Counter(min(330, max(1, int(generator.lognormvariate(3.0, 0.7)))) for _ in range(10_000))

    shares = [padding_stats(histogram, lengths).ratio for lengths in grids]

    assert [f"{100 * share:.0f} %" for share in shares] == re.findall(r"\d+ %", TEXT)[:4]
    assert 0.004 < padding_stats(fresh, grids[2]).ratio - shares[2] < 0.006


def test_every_engine_is_in_the_table() -> None:
    rows = re.findall(r"^\| (`.*?`) \| (.*?) \|", TEXT.partition("## Measure")[0], re.MULTILINE)
    documented = {name: pads for names, pads in rows for name in re.findall(r"`(\w+)`", names)}

    assert documented.keys() == ENGINES.keys()
    for name, pads in documented.items():
        engine = get_backend(name)
        expected = "its bucket length"
        if engine.polymorphic and engine.any_shape:
            expected = "nothing" if engine.ragged else "the longest sequence of its call"
        assert pads.startswith(expected), name


def test_the_picture_is_there() -> None:
    (link,) = re.findall(r"!\[.*\]\((.*)\)", TEXT)
    data = (ROOT / "docs" / link).read_bytes()

    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20], "big") == 1440

"""Statements of docs/metrics.md on the metrics are true. Its server runs in `e2e/test_metrics.py`."""

import os
import re
import subprocess
import sys
from pathlib import Path

from shown import blocks

import torchserve_neuron_lstm.config
from torchserve_neuron_lstm.handlers.batch import BatchStats
from torchserve_neuron_lstm.handlers.metrics import METRICS, BatchMetrics

TEXT = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()


def test_the_table_has_every_metric_with_its_type_and_label() -> None:
    rows = re.findall(r"^\| `(neuron_lstm_\w+)` \| (\w+) \| (?:`(\w+)`)? *\|", TEXT, re.MULTILINE)

    assert rows == [(metric.name, metric.type, metric.dimension or "") for metric in METRICS]


def test_the_questions_ask_for_metrics_that_there_are() -> None:
    names = {metric.name for metric in METRICS if metric.type == "counter"}
    names |= {f"{metric.name}_{part}" for metric in METRICS if metric.type == "histogram" for part in ("sum", "count")}

    asked = set(re.findall(r"neuron_lstm_\w+", blocks(TEXT, "promql")[0]))

    assert len(asked) >= 5
    assert asked <= names


def test_the_command_copies_the_file(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(blocks(TEXT, "bash")[0], shell=True, cwd=tmp_path, env={**os.environ, "PATH": path}, check=True)

    shipped = Path(torchserve_neuron_lstm.config.__path__[0]) / "metrics.yaml"
    assert (tmp_path / "metrics.yaml").read_bytes() == shipped.read_bytes()


def test_the_line_of_lengths_is_the_one_that_a_batch_leaves() -> None:
    counts = BatchMetrics(requests=4, stats=BatchStats(lengths=(12, 50, 12, 12)))

    assert blocks(TEXT, "text")[0] == f"neuron_lstm lengths {counts.lengths_text}\n"

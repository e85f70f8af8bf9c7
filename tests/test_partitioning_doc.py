import json
import re
from pathlib import Path

import pytest
from printed import Capture, printed
from shown import blocks

from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.config.partitioner import AnalyzeParameters, PartitionerBlock, TraceArguments

DOCUMENT = (Path(__file__).parents[1] / "docs" / "partitioning.md").read_text(encoding="utf-8")
MODEL = """
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
CONFIG = """
neuron_lstm:
  inputs: {x: {dtype: float32, shape: [batch, time, 6]}}
  buckets: {batch: [2], length: [4]}
"""


def test_the_table_has_every_option_and_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", DOCUMENT, re.MULTILINE))
    written = PartitionerBlock()
    assert list(rows) == list(PartitionerBlock.model_fields)
    for name, default in rows.items():
        said = None if default == "none" else float(default)
        assert (getattr(written, name) or None) == said
    for name in (*TraceArguments.model_fields, *AnalyzeParameters.model_fields):
        assert f"`{name}`" in DOCUMENT


def test_its_yaml_is_read() -> None:
    own = "".join(f"{line}\n" for line in blocks(DOCUMENT, "yaml")[0].splitlines()[1:])
    assert parse_config(CONFIG + own, "f").partitioner_config == PartitionerBlock()


@pytest.mark.ci
def test_what_analyze_prints_for_machines_is_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL.lstrip())
    (tmp_path / "c.yaml").write_text(CONFIG)
    call = ["analyze", "--model-file", "model.py", "--config-file", "c.yaml", "--backend", "onnxruntime", "--json"]
    assert json.loads(printed(capsys, *call)) == json.loads(blocks(DOCUMENT, "json")[0])

"""A target serves what the configuration and the archive say."""

from __future__ import annotations

from pathlib import Path

from fake_model import make_manifest

from torchserve_neuron_lstm.archiver_ext.commands.tuning.target import find_target
from torchserve_neuron_lstm.bucketing.shapes import BucketGrid
from torchserve_neuron_lstm.config.load import load_config
from torchserve_neuron_lstm.config.manifest import Variant

CONFIG = """\
neuron_lstm:
  inputs: {ids: {dtype: int64, shape: [batch, time]}}
  buckets: {batch: [1, 8], length: [16, 32], longest: 64}
  backend: onnxruntime
"""


def test_sequences_that_only_the_configuration_serves_are_planned(tmp_path: Path) -> None:
    file = tmp_path / "model-config.yaml"
    file.write_text(CONFIG)
    variants = (Variant("sequence", None, "programs/any"),)
    manifest = make_manifest(shapes="any", variants=variants, grid=BucketGrid((1, 8), (16, 32)), longest=32)
    target = find_target(load_config(file), (tmp_path, manifest), file)

    planner = target.planner()
    assert planner is not None
    plan = planner.plan([5, target.longest])

    assert target.longest == 64
    assert {row for call in plan.calls for row in call.rows} == {0, 1}

"""A sample batch is as typical as the histogram, and planned for its target."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_model import make_manifest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.archiver_ext.commands.tuning.batch_drawing import make_sample_batch, quantiles
from torchserve_neuron_lstm.archiver_ext.commands.tuning.target import Target, find_target
from torchserve_neuron_lstm.bucketing.shapes import BucketGrid
from torchserve_neuron_lstm.config.load import load_config
from torchserve_neuron_lstm.config.manifest import Variant

CONFIG = """\
neuron_lstm:
  inputs: {{ids: {{dtype: int64, shape: [batch, time]}}}}
  buckets: {{batch: [1, 8], length: [16, 32]}}
  backend: {backend}
"""


@given(st.dictionaries(st.integers(1, 99), st.integers(0, 9), min_size=1).filter(lambda h: any(h.values())))
def test_as_many_rows_as_sequences_are_the_sequences(histogram: dict[int, int]) -> None:
    everything = [length for length, number in sorted(histogram.items()) for _ in range(number)]

    assert list(quantiles(histogram, len(everything))) == everything


@pytest.mark.parametrize(("backend", "calls"), [("native", 1), ("inductor", 2)])
def test_a_batch_is_planned_as_its_engine_takes_it(
    backend: str, calls: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("config") / "model-config.yaml"
    file.write_text(CONFIG.format(backend=backend))
    target = find_target(load_config(file), None, file)

    batch = make_sample_batch({3: 7, 30: 1}, target, (16, 32))

    assert batch is not None
    assert batch.lengths == (3, 3, 3, 3, 3, 3, 3, 30)
    assert len(batch.plan.calls) == calls
    assert not batch.measured


def test_sequences_that_only_the_configuration_serves_are_planned(tmp_path: Path) -> None:
    file = tmp_path / "model-config.yaml"
    file.write_text(CONFIG.format(backend="onnxruntime").replace("[16, 32]", "[16, 32], longest: 64"))
    variants = (Variant("sequence", None, "programs/any"),)
    manifest = make_manifest(shapes="any", variants=variants, grid=BucketGrid((1, 8), (16, 32)), longest=32)
    target = find_target(load_config(file), (tmp_path, manifest), file)

    assert target.make_planner is not None
    plan = target.make_planner(target.lengths).plan([5, target.longest])

    assert target.longest == 64
    assert {row for call in plan.calls for row in call.rows} == {0, 1}


def test_nothing_is_planned_for_an_unknown_target() -> None:
    assert make_sample_batch({3: 1}, Target(), (4,)) is None

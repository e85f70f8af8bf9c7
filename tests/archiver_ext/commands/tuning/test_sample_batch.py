"""A sample batch is as typical as the histogram, and planned for its target."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.archiver_ext.commands.tuning.sample_batch import make_sample_batch, quantiles
from torchserve_neuron_lstm.archiver_ext.commands.tuning.target import Target, find_target
from torchserve_neuron_lstm.config.load import load_config

CONFIG = """\
neuron_lstm:
  inputs: {{ids: {{dtype: int64, shape: [batch, time]}}}}
  buckets: {{batch: [1, 8], length: [16, 32]}}
  backend: {backend}
"""


@given(st.dictionaries(st.integers(1, 99), st.integers(0, 9), min_size=1).filter(lambda h: any(h.values())))
def test_as_many_rows_as_sequences_are_the_sequences(histogram: dict[int, int]) -> None:
    """Each sequence is then the middle of a part."""
    everything = [length for length, number in sorted(histogram.items()) for _ in range(number)]

    assert list(quantiles(histogram, len(everything))) == everything


@pytest.mark.parametrize(("backend", "calls"), [("native", 1), ("inductor", 2)])
def test_a_batch_is_planned_as_its_engine_takes_it(
    backend: str, calls: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Padding costs nothing in one call that stops its rows; buckets divide it."""
    file = tmp_path_factory.mktemp("config") / "model-config.yaml"
    file.write_text(CONFIG.format(backend=backend))
    target = find_target(load_config(file), None, file)

    batch = make_sample_batch({3: 7, 30: 1}, target, (16, 32))

    assert batch is not None
    assert batch.lengths == (3, 3, 3, 3, 3, 3, 3, 30)
    assert len(batch.plan.calls) == calls
    assert not batch.measured


def test_nothing_is_planned_for_an_unknown_target() -> None:
    """Nor where no sequence is served."""
    assert make_sample_batch({3: 1}, Target(), (4,)) is None

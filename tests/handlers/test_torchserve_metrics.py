import logging
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import ts
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ts.metrics.caching_metric import CachingMetric
from ts.metrics.metric_type_enum import MetricTypes

import torchserve_neuron_lstm.config
from torchserve_neuron_lstm.bucketing.plan import Plan, ProgramCall
from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid
from torchserve_neuron_lstm.handlers.batch import BatchStats
from torchserve_neuron_lstm.handlers.formats.request import ModelIdentity
from torchserve_neuron_lstm.handlers.metrics import METRICS, BatchMetrics, Metric
from torchserve_neuron_lstm.handlers.torchserve import MetricReporter, declared_units, dimensions

FILE = Path(torchserve_neuron_lstm.config.__path__[0]) / "metrics.yaml"
GRID = BucketGrid(batches=(1, 4), lengths=(8, 16))
PLAN = Plan((ProgramCall(Bucket(1, 16), (0,)), ProgramCall(Bucket(4, 8), (1, 2)), ProgramCall(Bucket(4, 8), (3, 4))))
STATS = BatchStats((12, 3, 8, 5, 5), 33, (PLAN,), 0.00012, 0.0034)
FULL = BatchMetrics(7, STATS, {"InvalidInput": 2, "SequenceTooLong": 1}, 0.006, 2, 3, 5, 4, 1, 6)

# What TorchServe's frontend takes for a metric; it drops other lines that begin so, with an error in its log.
LINE = re.compile(
    r"\[METRICS]\s*([\w\s]+)\.([\w\s]+):([0-9\-,.e]+)\|#([^|]*)(\|#type:([^|,]+))?\|#hostname:([^,]+),([^,]+)(,(.*))?"
)


def model_metrics() -> dict[tuple[str, str], Mapping[str, Any]]:
    return {
        (kind, entry["name"]): entry
        for kind, entries in yaml.safe_load(FILE.read_text())["model_metrics"].items()
        for entry in entries
        if entry["name"].startswith("neuron_lstm")
    }


def caching(metric: Metric) -> CachingMetric:
    entry = model_metrics()[metric.type, metric.name]
    return CachingMetric(metric.name, entry["unit"], entry["dimensions"], MetricTypes(metric.type))


MODEL = ModelIdentity("m", "2")
REPORTER = MetricReporter(MODEL, declared_units(caching), socket.gethostname())


def test_the_shipped_file_declares_every_metric_with_its_dimensions_and_no_other() -> None:
    """TorchServe matches dimensions by their order."""
    declared = {key: tuple(entry["dimensions"]) for key, entry in model_metrics().items()}

    assert declared == {(metric.type, metric.name): dimensions(metric) for metric in METRICS}


def test_the_shipped_file_declares_what_torchserves_own_file_does() -> None:
    """The shipped file replaces it."""
    ours, theirs = (yaml.safe_load(path.read_text()) for path in (FILE, Path(ts.__path__[0]) / "configs/metrics.yaml"))

    assert ours["ts_metrics"] == theirs["ts_metrics"]
    assert ours["model_metrics"]["gauge"] == theirs["model_metrics"]["gauge"]


def test_a_line_is_the_one_that_torchserve_writes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for metric in METRICS:
        for own, value in metric.values(FULL, GRID).items():
            number = value if isinstance(value, int) else f"{value:.6f}"
            names = [f"{metric.dimension}:{own}"] if metric.dimension else []
            told = ",".join([*names, "ModelName:m", "ModelVersion:2", "Level:Model"])
            caching(metric).emit_metrics("", number, told)
    theirs = [record.getMessage() for record in caplog.records if "[METRICS]" in record.getMessage()]

    time = int(theirs[0].rpartition(",")[2])
    assert [line.rpartition(",")[0] for line in REPORTER.lines(FULL, GRID, time)] == [
        line.rpartition(",")[0] for line in theirs
    ]


def test_a_batch_is_told_in_full() -> None:
    told = {}
    for line in REPORTER.lines(FULL, GRID, 1_700_000_000):
        found = LINE.fullmatch(line)
        assert found is not None
        own, _, rest = found[4].rpartition("ModelName:m,ModelVersion:2,Level:Model")
        assert rest == ""
        told[f"{found[1].removeprefix('neuron_lstm_')} {own.strip(',')}".strip(), found[2]] = float(found[3])

    assert told == {
        ("requests_total", "Count"): 7,
        ("sequences_total", "Count"): 5,
        ("own_model_sequences_total", "Count"): 5,
        ("shadow_compared_total", "Count"): 4,
        ("shadow_different_total", "Count"): 1,
        ("shadow_dropped_total", "Count"): 6,
        ("useful_timesteps_total", "Count"): 33,
        ("padded_timesteps_total", "Count"): 16 + 32 + 32 - 33,
        ("executions_total Bucket:1x16", "Count"): 1,
        ("executions_total Bucket:4x8", "Count"): 2,
        ("rejected_total Reason:InvalidInput", "Count"): 2,
        ("rejected_total Reason:SequenceTooLong", "Count"): 1,
        ("repeated_total", "Count"): 2,
        ("sessions_expired_total", "Count"): 3,
        ("plan_milliseconds_total", "Milliseconds"): 0.12,
        ("engine_seconds", "Seconds"): 0.0034,
        ("batch_seconds", "Seconds"): 0.006,
    }


@given(
    seconds=st.tuples(*[st.floats(0, 1e6)] * 3),
    numbers=st.tuples(*[st.integers(0, 10**12)] * 2),
    rejected=st.dictionaries(st.sampled_from(["InvalidInput", "InternalError"]), st.integers(1, 99)),
)
def test_whatever_was_counted_the_frontend_can_read_it(
    seconds: tuple[float, ...], numbers: tuple[int, ...], rejected: dict[str, int]
) -> None:
    """A line that it cannot read is an error in its log, for every batch."""
    counts = BatchMetrics(
        numbers[0], BatchStats((9,), numbers[1], (PLAN,), seconds[0], seconds[1]), rejected, seconds[2]
    )

    for line in REPORTER.lines(counts, GRID, 0):
        assert LINE.fullmatch(line), line


def test_what_the_server_does_not_declare_is_not_told() -> None:
    """The server would log every line and drop it."""
    declared = {metric.name: caching(metric) for metric in METRICS if "requests" in metric.name}
    units = declared_units(lambda metric: declared[metric.name])

    assert [line.partition(".")[0] for line in MetricReporter(MODEL, units, "h").lines(FULL, GRID, 0)] == [
        "[METRICS]neuron_lstm_requests_total"
    ]
    assert list(MetricReporter(MODEL, {}, "h").lines(FULL, GRID, 0)) == []


def test_a_metric_that_is_declared_with_other_dimensions_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The frontend would assign values to the wrong names."""
    other = CachingMetric("neuron_lstm_executions_total", "count", ["ModelName", "Level", "Bucket"])
    units = declared_units(lambda metric: other if metric.name == other.metric_name else caching(metric))

    assert {metric.name for metric in METRICS} - {metric.name for metric in units} == {other.metric_name}
    assert "['Bucket', 'ModelName', 'ModelVersion', 'Level']" in caplog.text

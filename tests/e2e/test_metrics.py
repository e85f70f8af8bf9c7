"""The metrics of a real TorchServe, at the address where Prometheus would read them."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rest import JSON, get, post, post_json
from torchserve_process import TorchServe, free_ports, serving

import torchserve_neuron_lstm.config

from .conftest import Store

pytestmark = pytest.mark.ci

METRICS_FILE = Path(torchserve_neuron_lstm.config.__path__[0]) / "metrics.yaml"
DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
FRAME = [0.0, 0.0, 0.0]
SECONDS = 20
"""The longest time until the frontend has read a worker's output."""

SAMPLE = re.compile(r"^(\w+){(.*)} (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def measured(store: Store, metrics_port: int) -> Iterator[TorchServe]:
    found = re.search(r"^```properties\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    shown = dict(line.split("=") for line in found[1].splitlines())
    assert shown["metrics_config"] == METRICS_FILE.name
    settings = {**shown, "metrics_config": str(METRICS_FILE), "metrics_address": f"http://127.0.0.1:{metrics_port}"}
    settings["decode_input_request"] = "false"  # JSON arrives as raw bytes, as in SageMaker's configuration
    with serving(store.folder, {"scorer": "scorer.mar", "decider": "decider.mar"}, settings=settings) as running:
        yield running


def samples(port: int, model: str = "scorer") -> dict[str, float]:
    """Our metrics of one model as `name{own dimension}`, without the common dimensions."""
    text = get(port, "/metrics").body.decode()
    found = {}
    for name, labels, value in SAMPLE.findall(text):
        if name.startswith("neuron_lstm_") and f'ModelName="{model}"' in labels:
            own = [label for label in labels.split(",") if label.split("=")[0] in {"Bucket", "Reason", "le"}]
            found[f"{name}{{{','.join(own)}}}"] = float(value)
    return found


def samples_once(port: int, name: str, value: float, model: str = "scorer") -> dict[str, float]:
    """The metrics, once one of them has the value: the frontend reads them while it answers.

    That one is the last of a batch.
    """
    deadline = time.monotonic() + SECONDS
    while (found := samples(port, model)).get(name) != value:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


def test_what_was_served_shows_at_the_metrics_address(measured: TorchServe, metrics_port: int) -> None:
    lengths = [1, 7, 16, 17, 32]
    for length in lengths:
        assert post_json(measured.inference, "/predictions/scorer", [FRAME] * length).status == 200
    several = post_json(measured.inference, "/predictions/scorer", {"instances": [[FRAME] * 3, [FRAME] * 20]})
    assert several.status == 200
    for body in (b"{", json.dumps([FRAME] * 33).encode(), json.dumps([FRAME] * 99).encode()):
        assert post(measured.inference, "/predictions/scorer", body, JSON).status in (400, 413)

    told = samples_once(metrics_port, "neuron_lstm_batch_seconds_count{}", len(lengths) + 4)

    assert told["neuron_lstm_requests_total{}"] == len(lengths) + 4
    assert told["neuron_lstm_sequences_total{}"] == len(lengths) + 2
    assert told["neuron_lstm_useful_timesteps_total{}"] == sum(lengths) + 23
    assert told['neuron_lstm_rejected_total{Reason="MalformedBody"}'] == 1
    assert told['neuron_lstm_rejected_total{Reason="SequenceTooLong"}'] == 2
    executions = {name: value for name, value in told.items() if name.startswith("neuron_lstm_executions_total")}
    assert sum(executions.values()) >= len(lengths) + 1
    assert set(executions) <= {
        f'neuron_lstm_executions_total{{Bucket="{batch}x{length}"}}' for batch in (1, 8) for length in (16, 32)
    }
    assert told["neuron_lstm_plan_milliseconds_total{}"] > 0
    assert told["neuron_lstm_engine_seconds_count{}"] == len(lengths) + 1
    assert told["neuron_lstm_batch_seconds_sum{}"] > told["neuron_lstm_engine_seconds_sum{}"] > 0
    assert told['neuron_lstm_batch_seconds_bucket{le="+Inf"}'] == len(lengths) + 4
    assert "Failed to" not in measured.log_file.read_text()
    log = (measured.log_file.parent / "model_log.log").read_text()
    assert re.search(r"MODEL_LOG - neuron_lstm lengths 3:1 20:1$", log, re.MULTILINE)
    assert "Backend received inference" not in log


def test_sequences_that_the_model_itself_answered_are_counted(measured: TorchServe, metrics_port: int) -> None:
    several = {"instances": [[FRAME] * 3, [FRAME] * 9]}
    assert post_json(measured.inference, "/v1/models/decider:predict", several).status == 200

    told = samples_once(metrics_port, "neuron_lstm_batch_seconds_count{}", 1, "decider")

    assert told["neuron_lstm_own_model_sequences_total{}"] == told["neuron_lstm_sequences_total{}"] == 2
    assert "neuron_lstm_own_model_sequences_total{}" not in samples(metrics_port)


def test_the_worker_reads_this_torchserves_messages_in_blocks(measured: TorchServe) -> None:
    assert post_json(measured.inference, "/predictions/scorer", [FRAME]).status == 200

    assert "read one value at a time" not in (measured.log_file.parent / "model_log.log").read_text()


def test_json_is_read_also_where_torchserve_does_not_decode_it(measured: TorchServe, server: TorchServe) -> None:
    for body in (b"[[1, 2, 3]]", b'{"instances": [[[1, 2, 3]]]}', b"[[1, 2"):
        raw, decoded = (post(one.inference, "/predictions/scorer", body, JSON) for one in (measured, server))
        assert (raw.status, raw.body) == (decoded.status, decoded.body)
    assert raw.status == 400

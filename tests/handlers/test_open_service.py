import os
from pathlib import Path

import pytest
from tiny_archive import change_manifest

from torchserve_neuron_lstm.config.manifest import CostMeasurement
from torchserve_neuron_lstm.handlers import open_service as module
from torchserve_neuron_lstm.handlers.formats.request import ModelIdentity
from torchserve_neuron_lstm.handlers.open_service import Host, open_service

BUSY = "costs were measured on a busy machine: run neuron-lstm calibrate"
ELSEWHERE = "costs were not measured on this host's H100: run neuron-lstm calibrate"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("measurement", "device", "lines"),
    [
        pytest.param(None, None, [], id="estimates"),
        pytest.param(CostMeasurement(1, 1.1), None, [], id="quiet"),
        pytest.param(CostMeasurement(1, 1.5), None, [BUSY], id="busy"),
        pytest.param(None, "H100", [ELSEWHERE], id="GPU without costs"),
        pytest.param(CostMeasurement(1, 1.5, "H200"), "H100", [ELSEWHERE], id="another GPU"),
        pytest.param(CostMeasurement(1, 1.1, "H100"), "H100", [], id="this GPU"),
    ],
)
def test_costs_that_should_be_measured_again_are_logged_in_one_line(
    archive: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    measurement: CostMeasurement | None,
    device: str | None,
    lines: list[str],
) -> None:
    change_manifest(archive, measurement=measurement)
    monkeypatch.setattr(module, "device_of", lambda _: device)
    model = ModelIdentity("sums", "1.0")

    open_service(Host(archive, model, 6_553_500, 120_000.0, lambda *_: None, dict(os.environ), threads=1))

    assert [record.getMessage() for record in caplog.records if "costs" in record.getMessage()] == lines

"""Archives of an earlier release behind a real TorchServe, with all engines at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torchserve_process import serving

from .projects import ARCHIVES, DOUBLES, PROJECTS, archived_names
from .serving import assert_close, post, rows, values


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("e2e")
def test_every_old_archive_answers_as_it_did(tmp_path: Path) -> None:
    """The management API describes the archive as well."""
    names = archived_names()
    environment = {"PYTHONPATH": str(DOUBLES), "NEURON_LSTM_SESSIONS": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with serving(
        ARCHIVES, {name: f"{name}.mar" for name in names}, ready_seconds=300, environment=environment
    ) as server:
        for name in names:
            expected = json.loads((ARCHIVES / f"{name}.json").read_text())
            for request, right in zip(rows(name), expected, strict=True):
                status, body = post(server.inference, f"/predictions/{name}", request)
                assert status == 200, (name, body)
                is_json = "codec:" not in PROJECTS[name].block
                assert_close(values(json.loads(body)) if is_json else body, right)
            (told,) = server.get(f"/models/{name}?customized=true")
            assert told["customizedMetadata"]["backend"] == PROJECTS[name].engine

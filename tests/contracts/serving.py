"""Serving of archives by `host.py`, and reading of the results."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch

from .projects import DOUBLES, HERE, PROJECTS

JSON = {"Content-Type": "application/json"}
OURS = ("torchserve_neuron_lstm", "_torchserve_neuron_lstm", "_editable_impl_torchserve_neuron_lstm", "__editable__")
LENGTHS = (1, 4, 6, 3)
"""The lengths of the requests of every archive, except one that takes its buckets' lengths only."""


@dataclass(frozen=True)
class Job:
    """An unpacked archive, and the batches of rows (`body`, `headers`) that it gets one after the other."""

    folder: Path
    name: str
    batches: Sequence[Sequence[Mapping[str, Any]]]
    environment: Mapping[str, str] = field(default_factory=dict)
    metrics: Path | None = None

    @property
    def text(self) -> dict[str, Any]:
        """The job in the form that `host.py` reads."""
        doubles = self.name in PROJECTS and PROJECTS[self.name].doubles
        return {
            "folder": str(self.folder),
            "name": self.name,
            "batches": self.batches,
            "environment": dict(self.environment),
            "paths": [str(DOUBLES)] if doubles else [],
            "metrics": None if self.metrics is None else str(self.metrics),
        }


def serve(jobs: Sequence[Job], place: Path) -> list[dict[str, Any]]:
    """The result of each job, from an interpreter without this project; its packages are links in `place`."""
    site = place / "site"
    if not site.exists():
        site.mkdir()
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if not entry.name.startswith(OURS) and entry.name != "__pycache__":
                (site / entry.name).symlink_to(entry)
    kept = ("PATH", "HOME", "TMPDIR", "LANG", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(HERE / "host.py"), str(site)],
        input=json.dumps([job.text for job in jobs]),
        env={name: os.environ[name] for name in kept if name in os.environ} | {"OMP_NUM_THREADS": "1"},
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def unpack(archive: Path, folder: Path) -> Path:
    """An archive's files, as TorchServe unpacks them."""
    with ZipFile(archive) as file:
        file.extractall(folder)
    return folder


def requests(name: str) -> list[dict[str, Any]]:
    """The input of each request of `LENGTHS`, by name: the same in every run."""
    lengths = (2, 4, 4, 2) if name == "exact_eager" else LENGTHS
    ids = [[(7 * step + 3 * row) % 19 for step in range(length)] for row, length in enumerate(lengths)]
    if "ids:" in PROJECTS[name].block:
        return [{"ids": row} for row in ids]
    frames = [[[(row % 5 - 2) / 4, row / 19, (row % 3) / 2] for row in rows] for rows in ids]
    if "speaker:" not in PROJECTS[name].block:
        return [{"frames": rows} for rows in frames]
    return [{"frames": rows, "speaker": [len(rows) / 8, -0.25]} for rows in frames]


def row(body: object, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A request with a JSON body."""
    return {"body": json.dumps(body), "headers": {**JSON, **(headers or {})}}


def words(body: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """A request to the archive whose codec reads words."""
    return {"body": " ".join(map(str, body["ids"])), "headers": {"Content-Type": "text/plain"}}


def rows(name: str) -> list[dict[str, Any]]:
    """The requests of `requests` as rows."""
    return [words(body) if "codec:" in PROJECTS[name].block else row(body) for body in requests(name)]


def values(answer: Any) -> Any:
    """An answer without the parts that differ from run to run: the ids of sessions."""
    if isinstance(answer, dict):
        return {key: values(value) for key, value in answer.items() if key != "ts_request_sequence_id"}
    return answer


def assert_close(answer: Any, expected: Any) -> None:
    """Check for the same nesting, keys and texts, with numbers within the default tolerance."""
    if isinstance(expected, dict):
        assert list(answer) == list(expected)
        for key, value in expected.items():
            assert_close(answer[key], value)
    elif isinstance(expected, list) and any(isinstance(one, str | dict | list) for one in expected):
        assert len(answer) == len(expected)
        for own, value in zip(answer, expected, strict=True):
            assert_close(own, value)
    elif isinstance(expected, list | float):
        torch.testing.assert_close(torch.tensor(answer), torch.tensor(expected), atol=1e-5, rtol=1e-5)
    else:
        assert answer == expected


def post(port: int, path: str, request: Mapping[str, Any]) -> tuple[int, str]:
    """The status and body of a request to a server on this machine."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", path, request["body"].encode("latin-1"), request["headers"])
        response = connection.getresponse()
        return response.status, response.read().decode("latin-1")

"""Time and memory that TorchServe's worker takes to refuse requests that are made to cost much.

Each is sent several times, alone, to a real TorchServe. Run from the repository's root:
`python -m benchmarks.refusals`; about a minute. Exits 1 if a floor is missed; the last lines name it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

import torch
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from torchserve_process import TorchServe, serving

from ..standing import Standing, conclude, plain_table, standings_json, standings_table, write_figures
from .attacks import ATTACKS, BLOCK, LARGEST_ANSWER
from .model import Scorer

_MODEL = "scorer"
_MOST_MS = 500.0
_BYTES_PER_BYTE, _FURTHER_BYTES = 20, 64_000_000
_POLL_SECONDS = 0.001


@dataclass(frozen=True)
class Refusal:
    """Cost of one kind of request."""

    name: str
    body_bytes: int
    expected: int
    statuses: tuple[int, ...]
    milliseconds: float
    """The median."""
    most_milliseconds: float
    memory_bytes: int
    """The largest growth of the worker's resident memory."""

    @property
    def memory_share(self) -> float:
        """The growth of memory by what is allowed for a body of this size."""
        return self.memory_bytes / (_BYTES_PER_BYTE * self.body_bytes + _FURTHER_BYTES)


def main() -> int:
    """Serve, attack and report. Returns the exit code."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="refusals-") as folder:
        store = Path(folder)
        _make_archive(store, options.backend)
        settings = {"max_response_size": str(LARGEST_ANSWER)}
        with serving(store, {_MODEL: f"{_MODEL}.mar"}, settings=settings) as server:
            found = [_measure(server, name, options.times) for name in ATTACKS]
    standing = standings(found)
    _print(found, standing)
    figures = {"refusals": [asdict(one) for one in found], "floors": standings_json(standing)}
    write_figures(figures, options.json)
    return conclude(standing)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.refusals", description=__doc__)
    parser.add_argument("--times", type=int, default=5, help="repetitions of each request (default: %(default)s)")
    parser.add_argument("--backend", default="native", help="the engine of the archive (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args()


def _make_archive(store: Path, backend: str) -> None:
    shutil.copy(Path(__file__).with_name("model.py"), store)
    torch.manual_seed(0)
    torch.save(Scorer().state_dict(), store / "weights.pt")
    block = "".join(f"  {line}\n" for line in f"{BLOCK.strip()}\nbackend: {backend}".splitlines())
    (store / "model-config.yaml").write_text(f"minWorkers: 1\nmaxWorkers: 1\nneuron_lstm:\n{block}")
    flags = "--version 1.0 --model-file model.py --serialized-file weights.pt --handler neuron_lstm"
    subprocess.run(
        [
            *(str(Path(sys.executable).with_name("torch-model-archiver")), "--model-name", _MODEL, *flags.split()),
            *("--config-file", "model-config.yaml"),
        ],
        cwd=store,
        check=True,
    )


def _measure(server: TorchServe, name: str, times: int) -> Refusal:
    body, headers, expected = ATTACKS[name]
    (pid,) = server.worker_pids(_MODEL)
    statuses, milliseconds = [], []
    with _growth(pid) as growth:
        for _ in range(times):
            started = time.perf_counter()
            statuses.append(_post(server.inference, body, headers))
            milliseconds.append(1000 * (time.perf_counter() - started))
    if server.worker_pids(_MODEL) != [pid]:
        statuses.append(0)
    return Refusal(
        name, len(body), expected, tuple(statuses), median(milliseconds), max(milliseconds), max(growth, default=0)
    )


def _post(port: int, body: bytes, headers: Mapping[str, str]) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", f"/predictions/{_MODEL}", body, dict(headers))
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


@contextmanager
def _growth(pid: int) -> Iterator[list[int]]:
    """Resident memory of a process, in bytes more than at the start, read every millisecond within the block."""
    before, grown, ended = _resident_bytes(pid), [], threading.Event()

    def read() -> None:
        while not ended.wait(_POLL_SECONDS):
            grown.append(_resident_bytes(pid) - before)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield grown
    finally:
        ended.set()
        reader.join()


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def standings(found: list[Refusal]) -> list[Standing]:
    """The floors of the costliest refusal."""
    wrong = sum(status != one.expected for one in found for status in one.statuses)
    return [
        Standing(
            "milliseconds of a refusal, the costliest one's",
            max(one.milliseconds for one in found),
            _MOST_MS,
            100.0,
            "less",
        ),
        Standing(
            "memory of a refusal, of 20 times the body and 64 MB",
            max(one.memory_share for one in found),
            1.0,
            0.5,
            "less",
        ),
        Standing("other statuses than documented, workers that ended", wrong, 0, 0, "less"),
    ]


def _print(found: list[Refusal], standing: list[Standing]) -> None:
    table = plain_table("Refusals")
    for heading in ("", "body, kB", "status", "ms", "at most", "memory, MB", "of allowed"):
        table.add_column(heading, justify="right" if heading else "left")
    for one in found:
        table.add_row(
            one.name,
            f"{one.body_bytes / 1e3:.1f}",
            " ".join(map(str, sorted(set(one.statuses)))),
            f"{one.milliseconds:.1f}",
            f"{one.most_milliseconds:.1f}",
            f"{one.memory_bytes / 1e6:.1f}",
            f"{one.memory_share:.2f}",
        )
    Console().print(table)
    Console().print(standings_table(standing))


if __name__ == "__main__":
    raise SystemExit(main())

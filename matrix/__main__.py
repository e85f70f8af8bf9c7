"""`make test-matrix`: other releases of Python, torch and every dependency, to package with and to serve on.

Each packaging environment runs the core of the tests and packages every test model. Each host serves the
archives through TorchServe's own loader, and compares every answer with eager mode. Environments stay in `.matrix/`.
The result is written to docs/matrix.md. Later releases of torch bring gigabytes of CUDA.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from .corners import HOSTS, PACKAGERS, Host, Packager
from .environments import ROOT, NotHere, make

PAGE = ROOT / "docs" / "matrix.md"
WORK = ROOT / ".matrix"
CORE = (
    "tests/lowering/test_exactness.py",
    "tests/lowering/test_request_lowering.py",
    "tests/lowering/loops/test_loops.py",
    "tests/backends/test_engines.py",
    "tests/backends/program_source",
    "tests/backends/native/test_rewrite.py",
    "tests/handlers/formats",
    "tests/inference",
)
"""The tests that run in every packaging environment."""


class Row(NamedTuple):
    """A row of the table."""

    corner: str
    ran: str
    result: str
    ok: bool | None
    """None: not run."""


def main() -> int:
    """Run the corners; returns 1 if one that was run is not green."""
    options = _options()
    WORK.mkdir(exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        packaged = [*pool.map(_packager, [one for one in PACKAGERS if _chosen(one, options.only)])]
        served = [*pool.map(_host, [one for one in HOSTS if _chosen(one, options.only)])]
    rows = [*chain(*packaged, *served)]
    for row in rows:
        print(" | ".join(row[:3]))
    if not options.only:
        PAGE.write_text(page(rows, dt.datetime.now(tz=dt.timezone.utc).date().isoformat()), "utf-8")
        print(f"wrote {PAGE}")
    return 1 if any(row.ok is False for row in rows) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="only environments whose name contains this text; the page is not written")
    parser.add_argument("--jobs", type=int, default=1, help="environments at a time, of some 4 GB each (default: 1)")
    return parser.parse_args()


def _chosen(corner: Packager | Host, only: str | None) -> bool:
    return only is None or only in corner.name


def _packager(corner: Packager) -> list[Row]:
    lowest = ", lowest of every dependency" if corner.lowest else ""
    title = f"package: Python {corner.python}, torch {corner.torch}{lowest}"
    try:
        python = make(corner, WORK)
    except NotHere as error:
        return [Row(title, "", f"not run: {error}", None)]
    print(f"{title}: tests", flush=True)
    # Other releases deprecate other names.
    tests = _last_line(
        [str(python), "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-m", "not long", "-W", "default", *CORE]
    )
    print(f"{title}: the test models", flush=True)
    models = _last_line([str(python), "-m", "matrix.package_models", str(_archives(corner))], "archives")
    return [Row(title, "core of the tests", *tests), Row(title, "the test models packaged", *models)]


def _host(host: Host) -> list[Row]:
    title = f"serve: Python {host.python}, torch {host.torch}, numpy {host.numpy or 'not installed'}"
    try:
        python = make(host, WORK)
    except NotHere as error:
        return [Row(title, "", f"not run: {error}", None)]
    rows = []
    for packager in PACKAGERS:
        folder = _archives(packager)
        if packager.archives and (folder / "requests.json").is_file():
            print(f"{title}: archives of torch {packager.torch}", flush=True)
            command = [str(python), str(ROOT / "matrix" / "serve.py"), str(folder), "--backends", *host.backends]
            rows.append(Row(title, f"archives of torch {packager.torch}", *_last_line(command, "exact")))
    return rows


def _archives(packager: Packager) -> Path:
    return WORK / f"archives-{packager.name}"


def _last_line(command: Sequence[str], word: str = "passed") -> tuple[str, bool]:
    """Run a command; returns the last line that it printed with a word, and whether it succeeded."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    lines = [line.strip("= ") for line in done.stdout.splitlines() if word in line]
    if done.returncode:
        sys.stderr.write(done.stdout)
    return (lines or [f"exit code {done.returncode}"])[-1], done.returncode == 0


def page(rows: Sequence[Row], date: str) -> str:
    """Return the page for the docs.

    >>> print(page([Row("package: Python 3.11", "test models", "177 archives", True)], "2026-01-31").splitlines()[-1])
    | package: Python 3.11 | test models | 177 archives | green |
    """
    verdicts = {True: "green", False: "**red**", None: ""}
    lines = [f"| {row.corner} | {row.ran} | {row.result} | {verdicts[row.ok]} |" for row in rows]
    return "\n".join([_HEAD.format(date=date), *lines, ""])


_HEAD = """# Releases of Python and torch that were run

`make test-matrix` writes this page. Last run: {date}, on Linux, x86-64.

A packaging environment runs the core of the tests, and packages every test model for `native`,
`onnxruntime` and `eager`. A host has TorchServe 0.12 without this package. It serves these archives through the loader
of TorchServe, and every answer is compared with eager mode: within 1e-5 + 1e-5 x |eager|. A model with an
operator that the ONNX exporter does not have is refused.

| environment | ran | result | |
|---|---|---|---|"""


if __name__ == "__main__":
    sys.exit(main())

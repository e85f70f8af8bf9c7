"""Serve archives on a host by TorchServe's own worker, and compare the answers with those of eager mode.

    python host.py FOLDER [BACKEND...]

It needs nothing of this project, and runs on Python 3.9. FOLDER is what `archives.py` wrote. Each archive is served in
a separate process, as by a worker of TorchServe.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import sys
import tempfile
import warnings
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

import torch
from worker import loaded, predict, request

ATOL = RTOL = 1e-5


def main(folder: Path, backends: list[str]) -> int:
    """Serve the archives of a folder; returns 1 if one is not served or differs."""
    cases = json.loads((folder / "requests.json").read_text(encoding="utf-8"))
    results = {
        name: _in_own_process(folder / f"{name}.mar", case["requests"])
        for name, case in cases.items()
        if "requests" in case and (not backends or name.rpartition("-")[2] in backends)
    }
    failed = {name: result for name, result in results.items() if not isinstance(result, float) or result > 1}
    for name, result in failed.items():
        print(f"  {name}: {result}")
    worst = max((result for result in results.values() if isinstance(result, float)), default=0.0)
    exact = f"{len(results) - len(failed)} of {len(results)} exact"
    print(f"{exact}, worst share of the tolerance {worst:.2g}")
    return 1 if failed or not results else 0


def _in_own_process(archive: Path, requests: list[dict[str, Any]]) -> float | str:
    context = multiprocessing.get_context("spawn")  # a fork of a process may not compute on several threads
    with ProcessPoolExecutor(1, context) as pool:
        try:
            return pool.submit(worst_share, archive, requests).result()
        except Exception as error:  # noqa: BLE001 - whatever a host raises is the result
            return f"{type(error).__name__}: {error}"


def worst_share(archive: Path, requests: list[dict[str, Any]]) -> float:
    """Return the largest difference from eager mode, as a share of the tolerance."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(archive) as content:
            content.extractall(folder)
        bodies = [json.dumps(case["body"]).encode() for case in requests]
        with loaded(Path(folder)) as service:
            answers = predict(service, [request(body, "application/json") for body in bodies])
    worst = 0.0
    for answer, case in zip((json.loads(answer.body) for answer in answers), requests):
        named = answer if isinstance(answer, dict) else {next(iter(case["answer"])): answer}
        if list(named) != list(case["answer"]):
            raise ValueError(f"outputs {list(named)}, expected {list(case['answer'])}: {str(answer)[:200]}")
        worst = max([worst, *(_share(named[name], wanted) for name, wanted in case["answer"].items())])
    return worst


def _share(answer: Any, wanted: list[float]) -> float:
    flat, right = torch.tensor(answer, dtype=torch.float64).flatten(), torch.tensor(wanted, dtype=torch.float64)
    if len(flat) != len(right):
        raise ValueError(f"{len(flat)} numbers, expected {len(right)}")
    shares = (flat - right).abs() / (ATOL + RTOL * right.abs())
    return float(max(shares.nan_to_num(torch.inf), default=0.0))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))

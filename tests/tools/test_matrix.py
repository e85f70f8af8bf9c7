"""The hosts of the matrix: archives are served and compared as by a worker of TorchServe."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_archive import make_archive, make_model

SERVE = Path(__file__).parents[2] / "tools" / "matrix" / "host.py"
IDS = [3, 1, 4, 1, 5]


def make_case(folder: Path, error: float = 0.0) -> Path:
    shutil.make_archive(str(folder / "sums-eager"), "zip", make_archive(folder / "unpacked", threads=2))
    (folder / "sums-eager.zip").rename(folder / "sums-eager.mar")
    with torch.no_grad():
        (answer,) = make_model()(torch.tensor([IDS]), torch.tensor([len(IDS)]))
    request = {"body": {"ids": IDS}, "answer": {"sums": (answer.flatten() + error).tolist()}}
    (folder / "requests.json").write_text(json.dumps({"sums-eager": {"requests": [request]}}))
    return folder


@pytest.mark.ci
@pytest.mark.parametrize(("error", "code"), [(0.0, 0), (1.0, 1)])
def test_archives_for_several_threads_are_served_and_answers_compared(tmp_path: Path, error: float, code: int) -> None:
    command = [sys.executable, str(SERVE), str(make_case(tmp_path, error))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert f"{1 - code} of 1 exact" in done.stdout, done.stdout + done.stderr
    assert done.returncode == code

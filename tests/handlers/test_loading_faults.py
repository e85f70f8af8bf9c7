"""Loading from a disk that fails, in TorchServe's own worker: each kind of call fails once."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import failing_files
import pytest

PROGRAM = Path(__file__).with_name("loading_faults.py")
BEFORE_US = ("MAR-INF/MANIFEST.json", "neuron_lstm.py", "neuron_lstm.cpython")
"""Files that TorchServe and Python read themselves."""
pytestmark = [pytest.mark.xdist_group("loading-faults"), pytest.mark.ci]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return failing_files.build(tmp_path_factory.mktemp("library"))


def trials(library: Path, archive: Path, *faults: str) -> list[dict[str, Any]]:
    """Loads with a fault each; the first one has none."""
    environment = {**failing_files.environment(library), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(PROGRAM), str(archive), *faults]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=580, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return [json.loads(line) for line in ended.stdout.splitlines()]


def violated_properties(trial: dict[str, Any], answer: object, archive: Path) -> list[str]:
    if trial["ready"]:
        return [] if (trial["status"], trial["body"]) == (200, answer) else ["the answer is right"]
    ours = not any(file in call for call in trial["calls"] for file in BEFORE_US)
    files = [call.split()[1].removeprefix(f"{archive}/").rstrip("/:") for call in trial["calls"]]
    named = any(file in trial["refusal"] for file in files)
    properties = {
        "a second load succeeds": trial["again"] == answer,
        "the error names the file": named or not ours,
        "TorchServe reports the error": trial["told"] or not ours,
    }
    return [name for name, holds in properties.items() if not holds]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "fault",
    [
        "USUAL:1:9",
        *(pytest.param(kind, marks=pytest.mark.long) for kind in ("USUAL:2:1", "RARER:1:1", "BROKEN:1:1", "PART:1:2")),
    ],
)
def test_a_load_with_a_fault_is_refused_or_right(library: Path, archive: Path, fault: str) -> None:
    without, *faults = trials(library, archive, fault)
    if fault.startswith("PART"):
        assert [one for one in faults if not one["ready"] or one["body"] != without["body"]] == []
        assert any(one["calls"] for one in faults)
    else:
        assert without["ready"]
        broken = [(violated_properties(one, without["body"], archive), one) for one in faults]
        assert [(properties, one["calls"], one["refusal"]) for properties, one in broken if properties] == []
        assert any(not one["ready"] for one in faults)

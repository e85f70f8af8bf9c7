"""Loading from a disk that fails, in TorchServe's own worker: each kind of call fails once."""

from pathlib import Path
from typing import Any

import failing_files
import pytest

PROGRAM = Path(__file__).with_name("loading_faults.py")
BEFORE_US = ("MAR-INF/MANIFEST.json", "neuron_lstm.py", "neuron_lstm.cpython")
"""Files that TorchServe and Python read themselves."""
pytestmark = [pytest.mark.xdist_group("loading-faults"), pytest.mark.ci]


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
def test_a_load_with_a_fault_is_refused_or_right(failing_library: Path, archive: Path, fault: str) -> None:
    without, *faults = failing_files.trials(failing_library, PROGRAM, archive, fault, PYTHONWARNINGS="ignore")
    if fault.startswith("PART"):
        assert [one for one in faults if not one["ready"] or one["body"] != without["body"]] == []
        assert any(one["calls"] for one in faults)
    else:
        assert without["ready"]
        broken = [(violated_properties(one, without["body"], archive), one) for one in faults]
        assert [(properties, one["calls"], one["refusal"]) for properties, one in broken if properties] == []
        assert any(not one["ready"] for one in faults)

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fuzz.findings import Findings, cause_of, read_causes
from fuzz.properties import PropertyViolation


def raised(error: Exception) -> Exception:
    """The error with the traceback of this line."""
    with suppress(type(error)):
        _raise(error)
    return error


def _raise(error: Exception) -> None:
    raise error


def test_the_first_input_of_each_cause_is_kept(tmp_path: Path) -> None:
    """Two errors of one line are one finding, whatever their messages."""
    findings = Findings(tmp_path / "found")

    findings.add(b"first", raised(ValueError("a")))
    findings.add(b"second", raised(ValueError("b")))
    findings.add(b"third", raised(KeyError("a")))

    kept = {path.read_bytes() for path in (tmp_path / "found").glob("*.input")}
    assert kept == {b"first", b"third"}
    assert sorted(cause.split(" at ")[0] for cause in read_causes(tmp_path / "found").values()) == [
        "KeyError",
        "ValueError",
    ]


def test_a_violated_property_has_the_cause_that_was_logged() -> None:
    """Two defects that violate one property are distinguished; without a cause, the property is the cause."""
    behind = raised(KeyError("x"))

    assert cause_of(PropertyViolation("status 500", behind)).startswith("KeyError at test_findings.py:")
    assert cause_of(raised(PropertyViolation("the answer is bounded"))) == "the answer is bounded"


def test_an_input_that_ended_the_process_is_a_finding(tmp_path: Path) -> None:
    """The fuzzer itself writes it; a folder that is missing has none."""
    (tmp_path / "timeout-0123").write_bytes(b"slow")

    assert read_causes(tmp_path) == {"timeout-0123": "the process ended: timeout"}
    assert read_causes(tmp_path / "missing") == {}

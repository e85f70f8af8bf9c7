"""The property of each fuzzed decoder holds for kept inputs and mutations; a wrong decoder violates it."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import fuzzed_services
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.fuzz import targets
from tools.fuzz.__main__ import SHARES, keep
from tools.fuzz.mutation import mutate
from tools.fuzz.targets import DATA, TARGETS, PropertyViolation, answers, inputs, read_case

from torchserve_neuron_lstm.config.manifest import Manifest, parse_manifest
from torchserve_neuron_lstm.handlers.formats import json_formats
from torchserve_neuron_lstm.handlers.formats.request import InferenceRequest
from torchserve_neuron_lstm.sessions.session import Session, decode_session
from torchserve_neuron_lstm.sessions.token import TokenState, verify_token

ROOT = Path(__file__).parents[2]


@cache
def pool(name: str) -> tuple[bytes, ...]:
    return tuple(inputs(name).values())


def mutated(name: str, content: bytes, seed: int) -> bytes:
    random = Random(seed)
    return TARGETS[name].mutate(content, lambda part, words: mutate(part, words or ("\0", "\x7f" * 4), random), random)


@pytest.mark.parametrize("name", TARGETS)
def test_the_property_holds_for_seeds_and_kept_inputs(name: str) -> None:
    """A defect that was found once does not come back."""
    for content in pool(name):
        TARGETS[name].check(content)

    assert any((DATA / name).iterdir())
    assert name in SHARES


@pytest.mark.few(2)
@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_the_property_holds_for_mutations_and_any_bytes(name: str, data: st.DataObject) -> None:
    content, seed = data.draw(st.sampled_from(pool(name))), data.draw(st.integers(0, 2**32))

    TARGETS[name].check(mutated(name, content, seed))
    TARGETS[name].check(data.draw(st.binary(max_size=60)))

    assert mutated(name, content, seed) == mutated(name, content, seed)


def test_the_search_starts_from_requests_that_are_answered_and_from_different_refusals() -> None:
    cases = [json.loads(line) for line in (DATA / "requests.jsonl").read_text("ascii").splitlines()]
    reasons = []
    for case in cases:
        (answer,) = answers(case["kind"], read_case(inputs("requests")[case["name"]]).request())
        assert (answer.status == 200) == case["accepted"], (case["name"], answer.body)
        reasons += [] if case["accepted"] else [json.loads(answer.body)["message"]]

    assert {case["kind"] for case in cases if case["accepted"]} == set(fuzzed_services.KINDS)
    assert len(reasons) == len(set(reasons)) > 20


def test_a_body_arrives_as_torchserve_gives_it() -> None:
    case = targets.Case("ids", b"[1]", headers=(("accept", "x"),), fields=(("x", "1"),))

    assert read_case(case.written()) == case
    assert case.request().row == {"x": "1", "body": bytearray(b"[1]")}
    assert replace(case, decoded="json").request().row == {"x": "1", "body": [1]}
    assert replace(case, decoded="json", body=b"[1").request().row == {"x": "1", "body": bytearray(b"[1")}
    assert replace(case, decoded="text").request().row == {"x": "1", "body": "[1]"}
    assert replace(case, arrival="form").request().row == {"x": "1"}
    assert case.request().header("accept") == "x"
    assert read_case(b"[1, 2]\n") == targets.Case("ids", b"[1, 2]\n")
    assert read_case(b"\xff form x\nno\n\n[1]") == targets.Case("ids", b"[1]", "form", fields=(("no", ""),))


def violated(name: str, content: bytes) -> str:
    with pytest.raises(PropertyViolation) as violation:
        TARGETS[name].check(content)
    return str(violation.value)


def test_a_wrong_service_violates_the_property(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(targets, "LARGEST_REFUSAL", 10)
        assert "the answer is bounded" in violated("requests", inputs("requests")["too_short"])
    with monkeypatch.context() as patch:
        patch.setattr(targets, "good_answer", lambda name: targets.Answer(200, b"[1]", "application/json", None))
        assert "a good request" in violated("requests", inputs("requests")["v1"])

    def fail(*arguments: object) -> InferenceRequest:
        raise KeyError("a defect")

    monkeypatch.setattr(json_formats.V1Format, "decode", fail)
    found = violated("requests", inputs("requests")["v1"])
    assert "500 of ids: a request failed" in found
    assert found.endswith("KeyError")


def test_a_wrong_decoder_violates_the_property(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*arguments: Any) -> Manifest:
        return replace(parse_manifest(*arguments), kind_reason="\ud800")

    def decode(record: bytes, key: bytes) -> Session:
        session = decode_session(record, key)
        return session._replace(steps=session.last_start)

    token = verify_token(inputs("tokens")["new"].decode(), targets.KEYS, targets.STATE_BYTES)

    def verify(*arguments: object) -> TokenState:
        return token

    monkeypatch.setattr(targets, "parse_manifest", read)
    monkeypatch.setattr(targets, "decode_session", decode)
    monkeypatch.setattr(targets, "verify_token", verify)
    with pytest.raises(RuntimeError, match="cannot be written"):
        TARGETS["manifests"].check(inputs("manifests")["plain"])
    assert "same bytes" in violated("records", inputs("records")["open"])
    assert "as it was" in violated("tokens", targets.signed(b"anything", b"\x01" * 32))


def test_the_first_input_of_each_cause_is_kept(tmp_path: Path) -> None:
    def failed(error: Exception) -> Exception:
        try:
            raise error
        except type(error) as raised:
            return raised

    errors = ValueError("a"), ValueError("b"), PropertyViolation("the answer is bounded"), PropertyViolation("KeyError")
    for content, error in zip((b"1", b"2", b"3", b"4"), errors, strict=True):
        keep(tmp_path, content, failed(error))

    kept = {path.read_bytes(): path.with_suffix(".txt").read_text() for path in tmp_path.glob("*.input")}
    assert sorted(kept) == [b"1", b"3", b"4"]
    assert [kept[content].partition(" at ")[0].partition("\n")[0] for content in sorted(kept)] == [
        "ValueError",
        "the answer is bounded",
        "KeyError",
    ]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_without_atheris_the_command_says_what_to_install() -> None:
    done = run("-c", "import sys; sys.modules['atheris'] = None; import tools.fuzz.__main__ as m; sys.exit(m.main())")

    assert done.returncode == 2
    assert "not installed: atheris" in done.stderr


@pytest.mark.skipif(find_spec("atheris") is None, reason="not run: needs the extra fuzz")
def test_a_target_is_searched(tmp_path: Path) -> None:
    done = run("-m", "tools.fuzz", "--target", "records", "--minutes", "0.1", "--findings", str(tmp_path / "findings"))

    assert done.returncode == 0, done.stderr
    assert "0 inputs violate a property" in done.stdout

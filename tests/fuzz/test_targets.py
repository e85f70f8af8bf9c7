"""The property of each target holds for kept inputs and mutations; a wrong decoder violates it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, partial
from random import Random
from typing import Any

import pytest
import torch
from fuzz.campaign import ROOT
from fuzz.case import read_case
from fuzz.corpus import CORPUS, DEFECTS, kept_directories, read_inputs
from fuzz.line_coverage import lines_of
from fuzz.mutation.octets import mutate_octets
from fuzz.properties import PropertyViolation
from fuzz.request_seeds import accepted_cases, refused_cases, seeds
from fuzz.served import kinds
from fuzz.target import Target
from fuzz.targets import manifests, records, requests, tokens
from fuzz.targets.registry import SHARES, load_target
from hypothesis import given, settings
from hypothesis import strategies as st

from torchserve_neuron_lstm.config.manifest import Manifest, read_manifest
from torchserve_neuron_lstm.handlers.formats import json_formats
from torchserve_neuron_lstm.handlers.formats.request import InferenceRequest
from torchserve_neuron_lstm.sessions.session import Session, decode_session
from torchserve_neuron_lstm.sessions.token import TokenState, verify_token

NAMES = sorted(SHARES)


@cache
def pool(name: str) -> tuple[bytes, ...]:
    """The seeds and the kept inputs of a target."""
    return (*load_target(name).seeds().values(), *(content for _, content in read_inputs(kept_directories(name))))


def mutated(target: Target, content: bytes, seed: int) -> bytes:
    """An input after up to three mutations, the same for the same seed."""
    random = Random(seed)
    for _ in range(random.randint(1, 3)):
        content = target.mutate(content, random, partial(mutate_octets, random=random))
    return content


def refused(name: str, content: bytes) -> str:
    """The violated property of an input."""
    with pytest.raises(PropertyViolation) as broken:
        load_target(name).check(content)
    return str(broken.value)


@pytest.mark.parametrize("name", NAMES)
def test_the_property_holds_for_seeds_and_kept_inputs(name: str) -> None:
    """A defect that was found once does not come back; each target has kept inputs."""
    target = load_target(name)

    assert all(any(directory.iterdir()) for directory in kept_directories(name))
    for content in pool(name):
        target.check(content)


@pytest.mark.parametrize("name", NAMES)
def test_the_decoders_have_the_functions_that_coverage_leaves_out(name: str) -> None:
    """A function that was renamed or moved would end the report of a campaign after its last minute."""
    for file, besides in load_target(name).decoders.items():
        assert lines_of((ROOT / file).read_text("utf-8"), besides) or not besides


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_the_property_holds_for_mutations(name: str, data: st.DataObject) -> None:
    """They begin with the seeds and kept inputs; the same seed makes the same input."""
    target = load_target(name)
    content, seed = data.draw(st.sampled_from(pool(name))), data.draw(st.integers(0, 2**32))

    target.check(mutated(target, content, seed))

    assert mutated(target, content, seed) == mutated(target, content, seed)


@pytest.mark.parametrize("name", NAMES)
@given(content=st.binary(max_size=60))
@settings(max_examples=60, deadline=None)
def test_the_property_holds_for_any_bytes(name: str, content: bytes) -> None:
    """These are no inputs that anybody would write."""
    load_target(name).check(content)


def test_the_kept_inputs_are_small() -> None:
    """A clone of the repository stays small."""
    assert (
        sum(path.stat().st_size for kept in (CORPUS, DEFECTS) for path in kept.rglob("*") if path.is_file()) < 500_000
    )


def test_accepted_requests_are_answered() -> None:
    """The search starts from requests of each service that get a 200, not from refusals."""
    cases = accepted_cases()
    for name, case in cases.items():
        kind = kinds.kind_of(case.kind)
        kind.reset()
        (response,) = kind.service.handle([case.request()])
        assert response.status == 200, (name, response.body)

    assert {case.kind for case in cases.values()} == set(kinds.KINDS)


def test_refused_requests_are_refused_for_different_reasons() -> None:
    """None of them is answered, and each tells its own reason."""
    reasons = set()
    for case in refused_cases().values():
        kind = kinds.kind_of(case.kind)
        kind.reset()
        (response,) = kind.service.handle([case.request()])
        assert response.status != 200
        reasons.add(json.loads(response.body)["message"])

    assert len(reasons) == len(refused_cases())


def test_the_fuzzed_model_answers_as_it_says() -> None:
    """The mean of the bounded inputs so far, whatever stands in the padding."""
    (response,) = kinds.kind_of("ids").service.handle([accepted_cases()["plain_array"].request()])

    expected = torch.tanh(torch.tensor([1.0, 2.0, 3.0]) / 100).cumsum(0) / torch.arange(1, 4)
    torch.testing.assert_close(torch.tensor(json.loads(response.body)), expected)


def test_a_500_violates_the_property_and_has_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A format that raises anything but a refusal is found."""

    def fail(*arguments: object) -> InferenceRequest:
        raise KeyError("a defect")

    monkeypatch.setattr(json_formats.V1Format, "decode", fail)

    assert "500 for ids: KeyError: 'a defect'" in refused("requests", seeds()["v1"])


def test_a_large_answer_breaks_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal that repeats the request is found."""
    monkeypatch.setattr(requests, "LARGEST_REFUSAL", 10)

    assert "the answer is bounded" in refused("requests", seeds()["too_short"])


def test_a_wrong_answer_to_the_good_request_breaks_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch in which one request changes the answer of another one is found."""
    kind = kinds.kind_of("ids")
    other = replace(kind, good=accepted_cases()["plain_array"].request())
    monkeypatch.setattr(requests, "kind_of", lambda name: other)
    requests._good_answer.cache_clear()
    requests._good_answer("ids")
    monkeypatch.setattr(requests, "kind_of", lambda name: kind)

    try:
        assert "a good request" in refused("requests", seeds()["v1"])
    finally:
        requests._good_answer.cache_clear()


def test_a_manifest_that_reads_as_another_breaks_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is changed by writing and reading is found."""

    def read(*arguments: Any) -> Manifest:
        return replace(read_manifest(*arguments), padding_reason="\ud800")

    monkeypatch.setattr(manifests, "read_manifest", read)

    with pytest.raises(RuntimeError, match="cannot be written"):
        manifests.check(manifests.seeds()["plain"])


def test_a_record_that_is_read_as_another_breaks_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that is read from another place is found."""

    def decode(record: bytes) -> Session:
        session = decode_session(record)
        return session._replace(steps=session.last_start)

    monkeypatch.setattr(records, "decode_session", decode)

    assert "same bytes" in refused("records", records.seeds()["open"])


def test_a_token_of_no_key_that_is_read_breaks_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that does not look at the signature is found."""
    known = verify_token(tokens.seeds()["new"].decode(), tokens.KEYS, tokens.STATE_BYTES)

    def verify(*arguments: object) -> TokenState:
        return known

    monkeypatch.setattr(tokens, "verify_token", verify)

    assert "same characters" in refused("tokens", tokens.signed(b"anything", b"\x01" * 32))


def test_a_request_that_is_read_from_any_bytes_names_a_service() -> None:
    """A line that is no JSON belongs to the body."""
    assert read_case(b"[1, 2]\n", kinds.KIND_NAMES).body == b"[1, 2]\n"
    assert read_case(b'{"kind": "x"}\n[1]', kinds.KIND_NAMES).kind == kinds.KIND_NAMES[0]

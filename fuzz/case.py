"""A fuzzed request as a file: a line of JSON that says how it arrives, then the bytes of its body."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest

ARRIVALS = ("body", "data", "bare", "form")
"""Places of a body in TorchServe's batch: a field of the row, the row itself, or none of these."""
DECODED = ("", "json", "text")
"""Content types that TorchServe decodes."""


@dataclass(frozen=True)
class Case:
    """One request."""

    kind: str
    """The service that it is sent to."""
    body: bytes
    arrival: str = "body"
    decoded: str = ""
    """`json` or `text`: TorchServe gives the value of a body of that content type, if it can."""
    headers: tuple[tuple[str, str], ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    """Form fields beside the body."""

    def request(self) -> RawRequest:
        """Return the request as TorchServe would give it."""
        value = self._value()
        fields: dict[str, object] = dict(self.fields)
        rows: Mapping[str, object] = {
            "body": {**fields, "body": value},
            "data": {**fields, "data": value},
            "bare": value,
            "form": fields,
        }
        return RawRequest(rows[self.arrival], dict(self.headers))

    def _value(self) -> object:
        try:
            if self.decoded:
                text = self.body.decode("utf-8")
                return json.loads(text) if self.decoded == "json" else text
        except (ValueError, RecursionError):
            pass  # TorchServe gives a body that it could not decode as it came
        return bytearray(self.body)


def write_case(case: Case) -> bytes:
    """Write a case as the bytes that `read_case` reads; facts that are as usual are left out."""
    usual = asdict(Case("", b""))
    facts = {name: value for name, value in asdict(case).items() if name != "body" and value != usual[name]}
    return json.dumps(facts).encode("ascii") + b"\n" + case.body


def read_case(content: bytes, kinds: tuple[str, ...]) -> Case:
    """Read a case from any bytes: facts that cannot be read are as usual.

    `kinds` are the names of the services; the first is that of a case that names none.
    """
    head, newline, body = content.partition(b"\n")
    try:
        facts = json.loads(head) if newline else None
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        return Case(kinds[0], content)
    return Case(
        kind=_one_of(facts.get("kind"), kinds),
        body=body,
        arrival=_one_of(facts.get("arrival"), ARRIVALS),
        decoded=_one_of(facts.get("decoded"), DECODED),
        headers=_pairs(facts.get("headers")),
        fields=_pairs(facts.get("fields")),
    )


def _one_of(value: object, choices: tuple[str, ...]) -> str:
    return value if isinstance(value, str) and value in choices else choices[0]


def _pairs(value: Any) -> tuple[tuple[str, str], ...]:
    """Return the pairs of strings in a list; others cannot be a header or a field."""
    pairs = value if isinstance(value, list) else []
    return tuple((pair[0], pair[1]) for pair in pairs if _is_pair(pair))


def _is_pair(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    # TorchServe reads headers as UTF-8, which has no half of a surrogate pair.
    return all(isinstance(part, str) and not any("\ud800" <= sign <= "\udfff" for sign in part) for part in value)

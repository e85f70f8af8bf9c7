"""Decoders of untrusted bytes, how their inputs are changed, and the property that holds for each.

- requests: each is answered, never with a 500; the answer is valid and bounded, and a good request of the same batch
  gets the answer that it gets alone.
- manifests: read, or refused with a `ManifestError`; one that was read can be written, and reads as the same.
- records of sessions: read, or refused with a `CorruptRecordError`; one that was read is written with the same bytes.
- tokens of sessions: read, or refused with an `InvalidTokenError` that repeats nothing of it; one that was read was
  signed with one of the keys. A service loads the token, or refuses it as the client's error.
"""

from __future__ import annotations

import hmac
import json
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from fake_context import FakeContext
from fuzzed_services import KIND_NAMES, MOST_RESPONSE_BYTES, kind_of, written_manifests

from torchserve_neuron_lstm.config.manifest import ManifestError, parse_manifest
from torchserve_neuron_lstm.config.manifest_writer import manifest_text
from torchserve_neuron_lstm.handlers.formats.npy import read_npy, write_npy
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.responses import JSON, JSON_LENGTH_HEADER, NPY, STATUSES, RequestError
from torchserve_neuron_lstm.handlers.streaming.state import SessionKey
from torchserve_neuron_lstm.handlers.streaming.token_sessions import TokenSessions
from torchserve_neuron_lstm.handlers.torchserve import handle
from torchserve_neuron_lstm.sessions.session import CorruptRecordError, decode_session, encode_session
from torchserve_neuron_lstm.sessions.token import InvalidTokenError, sign_token, verify_token

from .mutation import WORDS

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "fuzz"
LARGEST_REFUSAL = 8192
"""Bytes of a refusal: it repeats a little of the request, and an id."""
KEYS, STATE_ID, STATE_BYTES, NOW = (bytes(range(32)), bytes(32)), bytes(range(16)), 12, 1_700_000_000
RECORD_KEY = bytes(16)
SESSIONS = TokenSessions(KEYS, STATE_ID, STATE_BYTES, "model", 60.0, lambda: float(NOW))

Change = Callable[[bytes, Sequence[str]], bytes]
"""A function that changes text by some words, or bytes if there are none."""


class PropertyViolation(AssertionError):
    """A property that an input violates, with the error that was logged."""


def require(holds: bool, what: str) -> None:
    """Raise a `PropertyViolation` unless a property holds."""
    if not holds:
        raise PropertyViolation(what)


ARRIVALS, DECODED = ("body", "data", "form"), ("raw", "json", "text")
_LINES = """
accept: application/x-npy|accept: */*|accept: application/json|content-type: application/x-npy|content-length: -1
content-type: application/json|content-type: multipart/form-data; boundary=x|content-type: text/plain|describe: True
content-length: 99999999999|Inference-Header-Content-Length: 100|explain: True|x-request-timeout-ms: 0|x-client: b
x-request-timeout-ms: 1e3|x-request-deadline-ms: 1700000000050|x-request-deadline-ms: x|x-client: a|session: open
session: x|start: true|start: 2|end: 1|end: x|X-Start: 1|step: 9999999999999999999|step: \u0663|session=open|step=x
session=x|start=true|end=true|step=2|step: 2"""
HEAD_WORDS = (*KIND_NAMES, *ARRIVALS, *DECODED, *(f"\n{line}\n" for line in _LINES.replace("\n", "|").split("|")))
"""Words of the lines in front of a body."""


@dataclass(frozen=True)
class Case:
    """A request. A file of it has a line of how it arrives, lines of headers and fields, an empty one, and the body."""

    kind: str
    """The service that it is sent to."""
    body: bytes
    arrival: str = "body"
    """The place of the body in TorchServe's batch: a field of the row, the row itself, or none of these."""
    decoded: str = "raw"
    """`json` or `text`: TorchServe gives the value of a body of that content type, if it can."""
    headers: tuple[tuple[str, str], ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    """Form fields beside the body."""

    def request(self) -> RawRequest:
        """Return the request as TorchServe would give it."""
        value: object = bytearray(self.body)
        with suppress(ValueError, RecursionError):  # TorchServe gives a body that it could not decode as it came
            if self.decoded != "raw":
                text = self.body.decode()
                value = json.loads(text) if self.decoded == "json" else text
        fields: dict[str, object] = dict(self.fields)
        rows = {"body": {**fields, "body": value}, "data": {**fields, "data": value}, "form": fields}
        return RawRequest(rows[self.arrival], dict(self.headers))

    def written(self) -> bytes:
        """Return the bytes that `read_case` reads."""
        headers = [f"{name}: {text}" for name, text in self.headers]
        fields = [f"{name}={text}" for name, text in self.fields]
        return "\n".join((f"{self.kind} {self.arrival} {self.decoded}", *headers, *fields, "\n")).encode() + self.body


def read_case(content: bytes) -> Case:
    """Read a case from any bytes; those without an empty line are a body."""
    head, separator, body = content.partition(b"\n\n")
    if not separator:
        return Case(KIND_NAMES[0], content)
    first, *lines = head.decode(errors="replace").split("\n")  # TorchServe reads UTF-8
    words = first.split(" ")
    kind, arrival, decoded = (
        next((name for name in names if name in words), names[0]) for names in (KIND_NAMES, ARRIVALS, DECODED)
    )
    headers = [line.partition(": ") for line in lines if ": " in line]
    fields = [line.partition("=") for line in lines if ": " not in line]
    pairs = (tuple((name, text) for name, _, text in group) for group in (headers, fields))
    return Case(kind, body, arrival, decoded, *pairs)


class Answer(NamedTuple):
    """The response to a client."""

    status: int
    body: bytes
    content_type: str
    json_bytes: str | None
    """The header that tells the length of the JSON, where the bytes of tensors follow."""


class _Errors(logging.Handler):
    """The last error that a service logged: its kind and its lines."""

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            self.last = record.getMessage()


def check_request(content: bytes) -> None:
    """Send a request together with a good one, and judge both answers."""
    case = read_case(content)
    good, answer = answers(case.kind, kind_of(case.kind).good, case.request())
    _check_valid(answer)
    require(good == good_answer(case.kind), "a good request of the same batch is answered differently")


def answers(name: str, *requests: RawRequest) -> list[Answer]:
    """Return the answers of a service; a session that several name is the first one's."""
    kind, errors = kind_of(name), _Errors()
    kind.reset()
    context = FakeContext(headers=[item.headers for item in requests])
    logger = logging.getLogger("torchserve_neuron_lstm")
    logger.addHandler(errors)
    try:
        bodies = handle(kind.service, [item.row for item in requests], context)
    finally:
        logger.removeHandler(errors)
    statuses = [context.statuses.get(index, 200) for index in range(len(requests))]
    require(500 not in statuses, f"status 500 of {name}: {errors.last}")
    require(len(bodies) == len(requests), "each request has one answer")
    lengths = [context.response_headers.get(index, {}).get(JSON_LENGTH_HEADER) for index in range(len(requests))]
    types = [context.content_types[index] for index in range(len(requests))]
    return list(map(Answer, statuses, bodies, types, lengths))


@cache
def good_answer(name: str) -> Answer:
    """Return the answer to the good request of a service alone."""
    return answers(name, kind_of(name).good)[0]


def _check_valid(answer: Answer) -> None:
    status, body, content_type, json_bytes = answer
    require(status == 200 or status in STATUSES.values(), "the status is one that is documented")
    require(len(body) <= (MOST_RESPONSE_BYTES if status == 200 else LARGEST_REFUSAL), "the answer is bounded")
    if content_type == NPY:
        require(status == 200 and write_npy(read_npy(body)) == body, "a .npy answer can be read")
    elif json_bytes is not None:
        require(status == 200 and content_type == "application/octet-stream", "bytes are in an answer of their type")
        entries = _json(body[: int(json_bytes)])["outputs"]
        sizes = [entry.get("parameters", {}).get("binary_data_size", 0) for entry in entries]
        require(int(json_bytes) + sum(sizes) == len(body), "the entries tell how many bytes follow")
    elif content_type != JSON:
        require(status == 200 and content_type == "text/plain", "other answers are those of the user's codec")
    else:
        value = _json(body)
        if status != 200:
            require(value["code"] == status and value["type"] in STATUSES, "a refusal tells its status and type")
            require(isinstance(value["message"], str) and value["message"] != "", "a refusal tells its reason")


def _json(text: bytes) -> Any:
    def refuse(name: str) -> object:
        raise ValueError(f"{name} is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except ValueError as error:
        raise PropertyViolation(f"a JSON answer can be read: {error}") from error


def mutate_request(content: bytes, change: Change, random: Random) -> bytes:
    """Change how a request arrives, or its body; lengths in front of text that became another one mostly are right."""
    head, empty, body = content.partition(b"\n\n")
    if random.random() < 0.25:
        return change(head, HEAD_WORDS) + empty + body
    body = change(body, WORDS)
    if random.random() < 0.1:
        return head + empty + body
    if body.startswith(b"\x93NUMPY"):
        body = body[:8] + (body.find(b"}") - 9).to_bytes(2, "little", signed=True) + body[10:]
    case, end = read_case(head + empty + body), str(body.rfind(b"}") + 1)  # tensors are bytes behind the JSON
    pairs = ((name, end if name.lower() == JSON_LENGTH_HEADER.lower() else text) for name, text in case.headers)
    return replace(case, headers=tuple(pairs)).written()


def check_manifest(content: bytes) -> None:
    """Read these bytes as a manifest."""
    try:
        manifest = parse_manifest(content.decode("utf-8"))
    except (ManifestError, UnicodeDecodeError):  # a file that is no text is refused as one that is not there
        return
    require(parse_manifest(manifest_text(manifest)) == manifest, "a manifest that was written reads as the same")


def check_record(content: bytes) -> None:
    """Read these bytes as a record."""
    try:
        session = decode_session(content, RECORD_KEY)
    except CorruptRecordError:
        return
    require(encode_session(session, RECORD_KEY) == content, "a record that was read is written with the same bytes")


def mutate_record(content: bytes, change: Change, random: Random) -> bytes:
    """Change a record, and mostly make its checksum right again: it is no secret."""
    changed = change(content, ())
    if random.random() < 0.1:
        return changed
    return b"\x01" + blake2b(RECORD_KEY + changed[9:], digest_size=8, person=b"\x01").digest() + changed[9:]


def check_token(content: bytes) -> None:
    """Read these bytes as a token."""
    try:
        text = content.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    try:
        token = verify_token(text, KEYS, STATE_BYTES)
    except InvalidTokenError as error:  # a short text may stand in a message by chance
        require(len(text) <= 12 or text not in str(error), "a message repeats nothing of a token")
    else:
        require(text in [sign_token(token, key) for key in KEYS], "a token that was read is written as it was")
        require(len(token.state) <= STATE_BYTES, "a token has no larger state than that of the model")
    (loaded,) = SESSIONS.load([SessionKey("a", text)])
    if isinstance(loaded, RequestError):
        require(loaded.status in (400, 410), "a token is refused as the client's error")


def signed(content: bytes, key: bytes) -> bytes:
    """Return a token of any content with a right signature."""
    signature = hmac.digest(key, b"neuron-lstm session token\n" + content, "sha256")
    return urlsafe_b64encode(content + signature).rstrip(b"=")


def mutate_token(content: bytes, change: Change, random: Random) -> bytes:
    """Change bytes behind the characters of a token and sign them, or change its characters."""
    if random.random() < 0.3:
        return change(content, ())
    signed_bytes = b""
    with suppress(ValueError):
        signed_bytes = urlsafe_b64decode(content + b"=" * (-len(content) % 4))[:-32]
    return signed(change(signed_bytes, ()), random.choice((*KEYS, b"\x01" * 32)))


def _request_seeds() -> dict[str, bytes]:
    cases = [json.loads(line) for line in (DATA / "requests.jsonl").read_text("ascii").splitlines()]
    return {
        case.pop("name"): Case(**{**case, "body": case["body"].encode("latin-1")}).written()
        for case in cases
        if case.pop("accepted") is not None
    }


@dataclass(frozen=True)
class Target:
    """One decoder."""

    mutate: Callable[[bytes, Change, Random], bytes]
    """A change by libFuzzer's mutator, so that more inputs reach what is behind a checksum or a signature."""
    check: Callable[[bytes], None]
    """It raises where the property does not hold, and nothing else."""
    seeds: Callable[[], Mapping[str, bytes]] = dict
    """Inputs beside those of the target's folder."""


def _manifest_seeds() -> dict[str, bytes]:
    return {name: manifest_text(manifest).encode() for name, manifest in written_manifests().items()}


TARGETS = {
    "requests": Target(mutate_request, check_request, _request_seeds),
    "manifests": Target(lambda content, change, _: change(content, WORDS), check_manifest, _manifest_seeds),
    "records": Target(mutate_record, check_record),
    "tokens": Target(mutate_token, check_token),
}


def inputs(name: str) -> dict[str, bytes]:
    """Return well-formed inputs of a target, and those that showed a defect once."""
    kept = sorted((DATA / name).iterdir())
    return {**TARGETS[name].seeds(), **{path.name: path.read_bytes() for path in kept}}

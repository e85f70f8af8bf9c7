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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
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
from torchserve_neuron_lstm.handlers.streaming.open_sessions import TokenSessions
from torchserve_neuron_lstm.handlers.streaming.state import SessionKey
from torchserve_neuron_lstm.handlers.torchserve import handle
from torchserve_neuron_lstm.sessions.session import CorruptRecordError, Reply, Session, decode_session, encode_session
from torchserve_neuron_lstm.sessions.token import InvalidTokenError, TokenState, sign_token, token_model, verify_token

from .mutation import WORDS, mutate_json, mutate_npy, mutate_octets

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "fuzz"
LARGEST_REFUSAL = 8192
"""Bytes of a refusal: it repeats a little of the request, and an id."""
KEYS, STATE_ID, STATE_BYTES, NOW = (bytes(range(32)), bytes(32)), bytes(range(16)), 12, 1_700_000_000
SESSIONS = TokenSessions(KEYS, STATE_ID, STATE_BYTES, "model", 60.0, lambda: float(NOW))
HEADERS = {
    "accept": (NPY, JSON, f"{NPY}, {JSON};q=0.5", "*/*", ""),
    "content-type": (NPY, JSON, "multipart/form-data; boundary=x", "application/octet-stream", "text/plain"),
    "content-length": ("12", "99999999999", "-1", "1e3"),
    JSON_LENGTH_HEADER: ("100", "-1", "0"),
    "describe": ("True",),
    "explain": ("True",),
    "x-request-timeout-ms": ("50", "0", "1e3", "9" * 30),
    "x-request-deadline-ms": (str(NOW * 1000 + 50), "1", "x"),
    "x-client": ("a", "b", "\u00e9"),
    **dict.fromkeys(("session", "start", "end", "X-Start"), ("true", "1", "0", "2", "x", "open", "")),
    "step": ("0", "2", "9" * 19, "-1", "\u0663"),
}


class PropertyViolation(AssertionError):
    """A property that an input violates; the exception behind it is its cause, where one was logged."""


def require(holds: bool, what: str, cause: BaseException | None = None) -> None:
    """Raise a `PropertyViolation` unless a property holds."""
    if not holds:
        raise PropertyViolation(what if cause is None else f"{what}: {type(cause).__name__}: {cause}"[:500]) from cause


ARRIVALS, DECODED = ("body", "data", "bare", "form"), ("", "json", "text")


@dataclass(frozen=True)
class Case:
    """A request: as a file it is a line of JSON that says how it arrives, then the bytes of its body."""

    kind: str
    """The service that it is sent to."""
    body: bytes
    arrival: str = "body"
    """The place of the body in TorchServe's batch: a field of the row, the row itself, or none of these."""
    decoded: str = ""
    """`json` or `text`: TorchServe gives the value of a body of that content type, if it can."""
    headers: tuple[tuple[str, str], ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    """Form fields beside the body."""

    def request(self) -> RawRequest:
        """Return the request as TorchServe would give it."""
        value: object = bytearray(self.body)
        with suppress(ValueError, RecursionError):  # TorchServe gives a body that it could not decode as it came
            if self.decoded:
                text = self.body.decode()
                value = json.loads(text) if self.decoded == "json" else text
        fields: dict[str, object] = dict(self.fields)
        rows = {"body": {**fields, "body": value}, "data": {**fields, "data": value}, "bare": value, "form": fields}
        return RawRequest(rows[self.arrival], dict(self.headers))

    def written(self) -> bytes:
        """Return the bytes that `read_case` reads."""
        return json.dumps({**asdict(self), "body": None}).encode("ascii") + b"\n" + self.body


def read_case(content: bytes) -> Case:
    """Read a case from any bytes; those of none are a body."""
    head, _, body = content.partition(b"\n")
    with suppress(ValueError, TypeError, AttributeError, RecursionError):
        facts = json.loads(head)
        pairs = {key: tuple((name, text) for name, text in facts.get(key, ())) for key in ("headers", "fields")}
        case = Case(**{**facts, **pairs, "body": body})
        "".join(text for pair in case.headers + case.fields for text in pair).encode()  # TorchServe reads UTF-8
        if case.kind in KIND_NAMES and case.arrival in ARRIVALS and case.decoded in DECODED:
            return case
    return Case(KIND_NAMES[0], content)


class Answer(NamedTuple):
    """The response to a client."""

    status: int
    body: bytes
    content_type: str
    json_bytes: str | None
    """The header that tells the length of the JSON, where the bytes of tensors follow."""


class _Errors(logging.Handler):
    """The last exception that a service logged."""

    last: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.last = record.exc_info[1]


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
    require(500 not in statuses, f"status 500 of {name}", errors.last)
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


def mutate_request(content: bytes, random: Random) -> bytes:
    """Change how a request arrives, or a part of its body; mostly into a request of the same format."""
    case, choice = read_case(content), random.random()
    if choice < 0.08:
        return replace(case, kind=random.choice(KIND_NAMES)).written()
    if choice < 0.13:
        return replace(case, arrival=random.choice(ARRIVALS), decoded=random.choice(DECODED)).written()
    if choice < 0.25:
        name = random.choice(list(HEADERS))
        pair = (random.choice((name, name.title(), name.upper())), random.choice(HEADERS[name]))
        if random.random() < 0.3:
            return replace(case, fields=(*case.fields[-3:], pair)).written()
        return replace(case, headers=(*case.headers[-3:], pair)).written()
    length = next((text for name, text in case.headers if name.lower() == JSON_LENGTH_HEADER.lower()), "")
    if length.isdigit() and len(length) < 9 and choice < 0.8:  # tensors are bytes behind the JSON
        text, tail = case.body[: int(length)], case.body[int(length) :]
        if random.random() < 0.6:
            text = _mutate_text(text, random)
        else:
            tail = mutate_octets(tail, random)
        others = tuple(pair for pair in case.headers if pair[0].lower() != JSON_LENGTH_HEADER.lower())
        return replace(case, body=text + tail, headers=((JSON_LENGTH_HEADER, str(len(text))), *others)).written()
    is_npy = case.body.startswith(b"\x93NUMPY")
    body = mutate_npy(random) if random.random() < (0.7 if is_npy else 0.03) else _mutate_text(case.body, random)
    return replace(case, body=body).written()


def _mutate_text(text: bytes, random: Random) -> bytes:
    changed = mutate_json(text, WORDS, random) if random.random() < 0.85 else None
    return mutate_octets(text, random) if changed is None else changed


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
        session = decode_session(content)
    except CorruptRecordError:
        return
    require(encode_session(session) == content, "a record that was read is written with the same bytes")


def mutate_record(content: bytes, random: Random) -> bytes:
    """Change bytes of a record, often of its fields, and mostly make its checksum right again: it is no secret."""
    changed = bytearray(content)
    if random.random() < 0.6 and len(content) >= 53:
        value = random.choice((b"\x00", b"\x01", b"\x02", b"\x7f", b"\x80", b"\xff", b"\xff" * 4, bytes(4), b"\xc3"))
        place = random.randrange(9, 54 - len(value))
        changed[place : place + len(value)] = value
    else:
        changed = bytearray(mutate_octets(content, random))
    if random.random() < 0.9 and len(changed) > 9:
        changed[:9] = b"\x01" + blake2b(bytes(changed[9:]), digest_size=8, person=b"\x01").digest()
    return bytes(changed)


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


def mutate_token(content: bytes, random: Random) -> bytes:
    """Change bytes behind the characters of a token and sign them, or change its characters."""
    if random.random() < 0.3:
        return mutate_octets(content, random)
    known = b""
    with suppress(ValueError):
        known = urlsafe_b64decode(content + b"=" * (-len(content) % 4))[:-32]
    changed = mutate_octets(known, random)
    if random.random() < 0.5:
        changed = bytes((random.choice((0, 1, 2, 3)),)) + changed[1:]
    return signed(changed, random.choice((*KEYS, b"\x01" * 32)))


def _request_seeds() -> dict[str, bytes]:
    cases = [json.loads(line) for line in (DATA / "requests.jsonl").read_text("ascii").splitlines()]
    facts = [{key: case[key] for key in case if key not in ("name", "accepted", "body")} for case in cases]
    return {
        case["name"]: json.dumps(head).encode() + b"\n" + case["body"].encode("latin-1")
        for case, head in zip(cases, facts, strict=True)
    }


def _record_seeds() -> dict[str, bytes]:
    model, reply = bytes(range(16)), Reply(b'{"means":[1.5]}', "application/json")
    sessions = {
        "open": Session(12, 10, bytes(16), reply, b"\x00\x00\x80?" * 3, model),
        "ended": Session(2**64 - 1, 0, b"end", reply, b"", model, ended=True),
        "empty": Session(0, 0, b"", Reply(b"", ""), b"", bytes(16)),
    }
    return {name: encode_session(session) for name, session in sessions.items()}


def _token_seeds() -> dict[str, bytes]:
    state = TokenState(7, token_model(STATE_ID, "model"), b"\x00\x00\x80?" * 3, NOW)
    texts = {"new": (state, 0), "expired": (replace(state, issued=0), 0), "older_key": (replace(state, steps=2**63), 1)}
    return {name: sign_token(token, KEYS[key]).encode() for name, (token, key) in texts.items()}


@dataclass(frozen=True)
class Target:
    """One decoder."""

    seeds: Callable[[], Mapping[str, bytes]]
    mutate: Callable[[bytes, Random], bytes]
    check: Callable[[bytes], None]
    """It raises where the property does not hold, and nothing else."""


TARGETS = {
    "requests": Target(_request_seeds, mutate_request, check_request),
    "manifests": Target(
        lambda: {name: manifest_text(manifest).encode() for name, manifest in written_manifests().items()},
        _mutate_text,
        check_manifest,
    ),
    "records": Target(_record_seeds, mutate_record, check_record),
    "tokens": Target(_token_seeds, mutate_token, check_token),
}


def inputs(name: str) -> dict[str, bytes]:
    """Return the seeds of a target, and the kept inputs: each of those showed a defect once."""
    kept = sorted((DATA / name).iterdir())
    return {**TARGETS[name].seeds(), **{path.name: path.read_bytes() for path in kept}}

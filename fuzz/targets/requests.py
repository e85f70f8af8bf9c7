"""Requests of every format, with and without sessions, through the service that answers them.

The property: every request is answered, never with a 500; the answer is valid and bounded; and a good request of the
same batch gets the answer that it gets alone.
"""

from __future__ import annotations

import json
import logging
from functools import cache
from typing import NamedTuple

from fake_context import FakeContext

from torchserve_neuron_lstm.handlers.formats.npy import read_npy, write_npy
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.responses import JSON, NPY, STATUSES
from torchserve_neuron_lstm.handlers.service import Service
from torchserve_neuron_lstm.handlers.torchserve import handle

from ..case import read_case
from ..mutation.binary_tensors import LENGTH
from ..mutation.requests import mutate_request
from ..properties import PropertyViolation, require
from ..request_seeds import seeds
from ..served.kinds import KIND_NAMES, MOST_RESPONSE_BYTES, ServiceKind, kind_of
from ..target import Target

LARGEST_REFUSAL = 8192
"""Bytes of a refusal: it repeats a little of the request, and an id."""


def check(content: bytes) -> None:
    """Send a request together with a good one, and judge both answers.

    Raises:
        PropertyViolation: an answer is a 500, not valid, too large, or missing; or the good request is answered
            differently.
    """
    case = read_case(content, KIND_NAMES)
    kind = kind_of(case.kind)
    answer, good = _answers(kind, case.request())
    _check_valid(answer)
    require(good == _good_answer(case.kind), "a good request of the same batch is answered differently")


class Answer(NamedTuple):
    """The response to a client."""

    status: int
    body: bytes
    content_type: str
    json_bytes: str | None
    """The header that tells the length of the JSON, where the bytes of tensors follow."""


def _answers(kind: ServiceKind, request: RawRequest) -> tuple[Answer, Answer]:
    """Return the answer to a request, and to the good one."""
    kind.reset()
    requests = [kind.good, request]  # a session that both name is the good request's
    context = FakeContext(headers=[one.headers for one in requests])
    errors = _Errors()
    logger = logging.getLogger("torchserve_neuron_lstm")
    logger.addHandler(errors)
    try:
        bodies = handle(kind.service, [one.row for one in requests], context)
    finally:
        logger.removeHandler(errors)
    statuses = [context.statuses.get(index, 200) for index in range(len(requests))]
    if 500 in statuses:
        raise PropertyViolation(f"status 500 for {case_name(kind.service)}", errors.last)
    require(len(bodies) == len(requests), "each request has one answer")
    good, fuzzed = (
        Answer(statuses[index], body, context.content_types[index], context.response_headers.get(index, {}).get(LENGTH))
        for index, body in enumerate(bodies)
    )
    return fuzzed, good


def case_name(service: Service) -> str:
    """Return the names of the inputs of a service's model, for messages."""
    return "/".join(spec.name for spec in service.model.manifest.inputs)


class _Errors(logging.Handler):
    """The last exception that a service logged."""

    last: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.last = record.exc_info[1]


@cache
def _good_answer(kind_name: str) -> Answer:
    kind = kind_of(kind_name)
    kind.reset()
    (response,) = kind.service.handle([kind.good])
    return Answer(response.status, response.body, response.content_type, None)


def _check_valid(answer: Answer) -> None:
    status, body, content_type, json_bytes = answer
    require(status == 200 or status in STATUSES.values(), "the status is one that is documented")
    require(len(body) <= (MOST_RESPONSE_BYTES if status == 200 else LARGEST_REFUSAL), "the answer is bounded")
    if content_type == NPY:
        require(status == 200 and write_npy(read_npy(body)) == body, "a .npy answer can be read")
        return
    if json_bytes is not None:
        require(status == 200 and content_type == "application/octet-stream", "bytes are in an answer of their type")
        value = json.loads(body[: int(json_bytes)], parse_constant=_refuse_constant)
        sizes = [entry.get("parameters", {}).get("binary_data_size", 0) for entry in value["outputs"]]
        require(int(json_bytes) + sum(sizes) == len(body), "the entries tell how many bytes follow")
        return
    if content_type != JSON:
        require(status == 200 and content_type == "text/plain", "other answers are those of the user's codec")
        return
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except ValueError as error:
        raise PropertyViolation("a JSON answer can be read", error) from error
    if status != 200:
        require(value["code"] == status and value["type"] in STATUSES, "a refusal tells its status and type")
        require(isinstance(value["message"], str) and value["message"] != "", "a refusal tells its reason")


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


TARGET = Target(
    seeds,
    mutate_request,
    check,
    {
        "handlers/formats/__init__.py": ("load_codec", "make_codec"),
        "handlers/formats/raw_request.py": (),
        "handlers/formats/request.py": ("RequestFormat",),
        "handlers/formats/sequences.py": (),
        "handlers/formats/json_formats.py": (),
        "handlers/formats/v2.py": ("encode",),
        "handlers/formats/v2_outputs.py": ("write_output",),
        "handlers/formats/binary_tensors.py": (),
        "handlers/formats/npy.py": ("write_npy", "_prefix"),
        "handlers/formats/custom.py": ("load_user_codec", "UserCodec", "_content_type"),
        "handlers/formats/tensors.py": (),
        "handlers/responses.py": ("internal",),
        "handlers/deadline.py": (),
        "handlers/streaming/fields.py": (),
    },
)

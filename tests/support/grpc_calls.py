"""Calls of the Open Inference Protocol over gRPC that the tests of several hosts make."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import grpc
import numpy as np
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from mixed_requests import frames_of

from torchserve_neuron_lstm.hosts.grpc.messages import message_class

_KINDS = {"float32": "FP32", "int64": "INT64"}


def tensor(name: str, array: np.ndarray) -> triton.InferInput:
    """An input of Triton's client, which sends bytes."""
    return triton.InferInput(name, list(array.shape), _KINDS[str(array.dtype)]).set_data_from_numpy(array)


def client(port: int) -> closing[triton.InferenceServerClient]:
    """Triton's client of a server on this machine."""
    return closing(triton.InferenceServerClient(f"127.0.0.1:{port}"))


class Called(NamedTuple):
    message: bytes
    code: str
    details: str
    trailing: Mapping[str, str]


def call(
    port: int, method: str, content: bytes, metadata: Sequence[tuple[str, str]] = (), seconds: float | None = 60
) -> Called:
    """Call a method with a message that is bytes already."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        made = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        try:
            message, ended = made.with_call(content, timeout=seconds, metadata=metadata, wait_for_ready=True)
        except grpc.RpcError as error:
            trailing = {key: str(value) for key, value in error.trailing_metadata() or ()}
            return Called(b"", error.code().name, error.details(), trailing)
        return Called(message, ended.code().name, "", {})


def infer(port: int, message: Any, **options: Any) -> Called:
    return call(port, "ModelInfer", message.SerializeToString(), **options)


def request(model: str = "scorer", **fields: Any) -> Any:
    """A ModelInferRequest of frames[1, 4, 3] with its numbers in raw_input_contents."""
    frames = frames_of(4, 0)[None]
    given = {"name": "frames", "datatype": "FP32", "shape": frames.shape}
    whole = {"model_name": model, "inputs": [given], "raw_input_contents": [frames.tobytes()], **fields}
    return message_class("ModelInferRequest")(**whole)


class Wrong(NamedTuple):
    """A request that cannot be answered, and its end."""

    change: str
    fields: Mapping[str, Any]
    code: str
    kind: str
    """The type in its trailing metadata."""
    told: str
    """A part of its details."""


WRONG = (
    Wrong("an unknown model", {"model_name": "nothing"}, "NOT_FOUND", "ModelNotFoundException", "nothing"),
    Wrong("too late", {"parameters": {"timeout": {"int64_param": 1}}}, "DEADLINE_EXCEEDED", "DeadlineExceeded", "ms"),
    Wrong("too large", {"raw_input_contents": [bytes(7_000_000)]}, "INVALID_ARGUMENT", "BodyTooLarge", "6553500"),
)


def broken_messages(count: int) -> Iterator[bytes]:
    """Bytes of a request, with some of them changed, cut off or put in."""
    rng, whole = random.Random(0), request(id="abc").SerializeToString()
    for _ in range(count):
        content, place = bytearray(whole), rng.randrange(len(whole))
        match rng.randrange(3):
            case 0:
                content[place] = rng.randrange(256)
            case 1:
                del content[place:]
            case _:
                content[place:place] = rng.randbytes(rng.randint(1, 20))
        yield bytes(content)


def equal_over_rest(http_port: int, grpc_port: int, model: str, arrays: Mapping[str, np.ndarray], **flags: Any) -> bool:
    """Whether a request has the same outputs, bit for bit, over both protocols by Triton's clients."""
    with triton_http.InferenceServerClient(f"127.0.0.1:{http_port}") as rest, client(grpc_port) as called:
        given = [
            triton_http.InferInput(name, list(one.shape), _KINDS[str(one.dtype)]).set_data_from_numpy(one)
            for name, one in arrays.items()
        ]
        over_rest = rest.infer(model, given, **flags)
        over_grpc = called.infer(model, [tensor(name, one) for name, one in arrays.items()], **flags)
        names = [one["name"] for one in over_rest.get_response()["outputs"]]
        assert names == [one.name for one in over_grpc.get_response().outputs]
        pairs = [(over_rest.as_numpy(name), over_grpc.as_numpy(name)) for name in names]
        return all(one.dtype == other.dtype and one.tobytes() == other.tobytes() for one, other in pairs)

"""TorchServe's own Python worker without its Java code: its loader, its service, its wire format."""

import json
import os
import struct
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class WorkerResponse:
    status: int
    phrase: str
    headers: Mapping[str, str]
    body: bytes


def request(body: bytes | None, content_type: str = "", headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """One request as read from the wire; without a body there is no parameter."""
    parameter = {"name": "body", "contentType": content_type, "value": parse_body(body or b"", content_type)}
    return {
        "requestId": b"1",
        "headers": [{"name": key.encode(), "value": value.encode()} for key, value in (headers or {}).items()],
        "parameters": [] if body is None else [parameter],
    }


def parse_body(body: bytes, content_type: str) -> Any:
    """A body in the form of TorchServe's own decoder."""
    from ts.protocol import otf_message_handler as wire

    class _Socket:
        def __init__(self, sent: bytes) -> None:
            self.left = sent

        def recv(self, size: int) -> bytes:
            part, self.left = self.left[:size], self.left[size:]
            return part

    fields = (b"body", content_type.encode(), body)
    sent = b"".join(struct.pack("!i", len(field)) + field for field in fields)
    return wire._retrieve_input_data(_Socket(sent))["value"]


@contextmanager
def loaded(folder: Path, metrics_file: Path | None = None) -> Iterator[Any]:
    """TorchServe's `Service` of the archive in `folder`, in its working directory and on its `sys.path`."""
    path, finders, modules, before = list(sys.path), list(sys.meta_path), set(sys.modules), Path.cwd()
    sys.path.insert(0, str(folder))
    sys.meta_path[:] = [finder for finder in finders if not hasattr(finder, "archive")]  # that of another archive
    sys.modules.pop("neuron_lstm", None)
    os.chdir(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # it does not close its files
            import ts
            from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
            from ts.model_loader import TsModelLoader

            metrics = MetricsCacheYamlImpl(str(metrics_file or Path(ts.__path__[0], "configs", "metrics.yaml")))
            metrics.initialize_cache()
        metrics.model_name = "sums"
        service = TsModelLoader().load("sums", str(folder), "neuron_lstm.py", None, 8, None, True, metrics)
        service.set_cl_socket(None)
        yield service
    finally:
        os.chdir(before)
        sys.path[:], sys.meta_path[:] = path, finders
        for name in set(sys.modules) - modules:
            file = str(getattr(sys.modules[name], "__file__", None))
            if not name.startswith("torchserve_neuron_lstm") and file.startswith(str(folder.resolve())):
                del sys.modules[name]


def predict(service: Any, requests: Sequence[Mapping[str, Any]]) -> list[WorkerResponse]:
    """The worker's answers to one batch; an answer for the batch as a whole is an error."""
    numbered = [{**one, "requestId": str(index).encode()} for index, one in enumerate(requests)]
    return list(_decode(bytes(service.predict(numbered)), len(requests)))


def answered(folder: Path, bodies: Sequence[object]) -> list[WorkerResponse]:
    """The worker's answers to one batch of JSON values by an archive."""
    with loaded(folder) as service:
        return predict(service, [request(json.dumps(body).encode(), "application/json") for body in bodies])


def _decode(message: bytes, count: int) -> Iterator[WorkerResponse]:
    wire = _Reader(message)
    assert (wire.number(), wire.text()) == (200, "Prediction success")
    for index in range(count):
        assert wire.text() == str(index)
        content_type, status, phrase = wire.text(), wire.number(), wire.text()
        headers = {wire.text(): wire.text() for _ in range(wire.number())}
        assert headers.get("content-type", "") == content_type
        yield WorkerResponse(status, phrase, headers, wire.piece())
    assert wire.number() == -1


class _Reader:
    def __init__(self, message: bytes) -> None:
        self.left = message

    def number(self) -> int:
        (value,) = struct.unpack("!i", self._take(4))
        return int(value)

    def piece(self) -> bytes:
        return self._take(self.number())

    def text(self) -> str:
        return self.piece().decode()

    def _take(self, size: int) -> bytes:
        part, self.left = self.left[:size], self.left[size:]
        assert len(part) == size
        return part

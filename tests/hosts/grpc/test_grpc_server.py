import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch
from tiny_archive import make_archive, sums_of

from torchserve_neuron_lstm.handlers.responses import STATUSES
from torchserve_neuron_lstm.hosts import held_bodies
from torchserve_neuron_lstm.hosts.grpc.grpc_server import answer
from torchserve_neuron_lstm.hosts.grpc.messages import GrpcAnswer, code_of, message_class
from torchserve_neuron_lstm.hosts.served_archive import ArchiveSettings, ServedArchive

CODES = {
    *("INVALID_ARGUMENT", "NOT_FOUND", "ABORTED", "RESOURCE_EXHAUSTED", "INTERNAL", "UNIMPLEMENTED"),
    *("UNAVAILABLE", "DEADLINE_EXCEEDED"),
}
Ask = Callable[..., GrpcAnswer]


def served(folder: Path, waiting: int = 100) -> ServedArchive:
    return ServedArchive(ArchiveSettings(str(folder), "sums", threads=1, most_waiting=waiting), lambda *_: None)


def asked(folder: Path, *calls: tuple[str, Any], waiting: int = 100) -> list[GrpcAnswer]:
    async def ask() -> list[GrpcAnswer]:
        archives: Mapping[str, ServedArchive] = {"sums": served(folder, waiting)}
        found = await asyncio.gather(
            *[answer(method, content.SerializeToString(), (), archives) for method, content in calls]
        )
        await archives["sums"].close()
        return found

    return asyncio.run(ask())


def request(name: str = "sums", version: str = "", **fields: Any) -> Any:
    entry = {"name": "ids", "datatype": "INT64", "shape": [3], "contents": {"int64_contents": [1, 2, 3]}}
    given = {"model_name": name, "model_version": version, "inputs": [entry], **fields}
    return message_class("ModelInferRequest")(**given)


def test_a_sequence_is_answered_as_the_model_answers_it(archive: Path) -> None:
    (found,) = asked(archive, ("ModelInfer", request()))

    assert found.code == "OK"
    (content,) = message_class("ModelInferResponse").FromString(found.message).raw_output_contents
    torch.testing.assert_close(torch.from_numpy(np.frombuffer(content, np.float32).copy()), sums_of([1, 2, 3]).ravel())


@pytest.mark.ci
def test_a_server_and_its_model_tell_what_they_are_and_that_they_are_ready(archive: Path) -> None:
    ready, other = message_class("ModelReadyRequest")(name="sums"), message_class("ModelReadyRequest")(name="x")
    names = ("ServerLive", "ServerReady", "ModelReady", "ModelReady", "ServerMetadata", "ModelMetadata")
    empty = message_class("ServerLiveRequest")()
    found = asked(archive, *zip(names, [empty, empty, ready, other, empty, ready], strict=True))
    live, is_ready, model, nothing, server, told = [
        message_class(f"{name}Response").FromString(one.message) for name, one in zip(names, found, strict=True)
    ]

    assert (live.live, is_ready.ready, model.ready, nothing.ready) == (True, True, True, False)
    assert server.name == "torchserve-neuron-lstm"
    assert (told.name, [*told.versions], [*told.inputs[0].shape]) == ("sums", ["2.0"], [-1, -1])
    assert asked(archive, ("ModelMetadata", other))[0].code == "NOT_FOUND"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("fields", "code", "kind"),
    [
        ({"name": "x"}, "NOT_FOUND", "ModelNotFoundException"),
        ({"version": "9"}, "NOT_FOUND", "ModelVersionNotFoundException"),
        ({"inputs": []}, "INVALID_ARGUMENT", "InvalidInput"),
        ({"id": "x" * 7_000_000}, "INVALID_ARGUMENT", "BodyTooLarge"),
        ({"id": "x" * 513}, "INVALID_ARGUMENT", "InvalidInput"),
    ],
)
def test_a_refusal_has_a_code_and_a_type(archive: Path, fields: dict[str, Any], code: str, kind: str) -> None:
    (found,) = asked(archive, ("ModelInfer", request(**fields)))

    assert (found.code, dict(found.trailing)["error-type"]) == (code, kind)
    assert found.details


class Replaced(dict[str, ServedArchive]):
    """Archives of which each look-up finds the next version."""

    versions: Sequence[str] = ("2.0", "3.0")

    def get(self, name: str, default: Any = None) -> Any:
        self[name].version, *self.versions = self.versions
        return super().get(name, default)


@pytest.mark.parametrize(("version", "code"), [("", "OK"), ("2.0", "NOT_FOUND")])
def test_an_archive_that_is_replaced_while_a_message_is_read_answers_for_its_version_alone(
    archive: Path, version: str, code: str
) -> None:
    async def ask() -> GrpcAnswer:
        archives = Replaced(sums=served(archive))
        content = request(version=version).SerializeToString()
        found = await answer("ModelInfer", content, (), archives)
        await archives["sums"].close()
        return found

    assert asyncio.run(ask()).code == code


def test_a_full_queue_is_unavailable(archive: Path) -> None:
    found = asked(archive, *[("ModelInfer", request())] * 5, waiting=2)

    assert [one.code for one in found] == ["OK", "OK", *["UNAVAILABLE"] * 3]


def test_messages_that_wait_count_as_bodies_over_rest_do(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_bodies, "_MOST_BYTES", len(request().SerializeToString()) * 2)
    found = asked(archive, *[("ModelInfer", request())] * 3) + asked(archive, *[("ModelInfer", request())] * 2)

    assert [one.code for one in found] == ["OK", "OK", "UNAVAILABLE", "OK", "OK"]


def test_a_model_with_a_codec_of_its_own_is_served_over_rest_alone(tmp_path: Path) -> None:
    """It would read the bytes of the protocol as its own."""
    (found,) = asked(make_archive(tmp_path / "own", codec="codec_of_tests:Codec"), ("ModelInfer", request()))

    assert found.code == "UNIMPLEMENTED"


def test_every_status_of_a_refusal_has_a_code() -> None:
    assert {code_of(status) for status in {*STATUSES.values(), 503, 404}} == CODES
    assert code_of(STATUSES["AnswerNotFinite"]) == "INTERNAL"


def test_a_name_of_any_length_is_not_found(archive: Path) -> None:
    """The details are metadata, whose size is bounded: the client would have another error, and try again."""
    found = asked(archive, ("ModelInfer", request("x" * 20_000)), ("ModelInfer", request(version="9" * 20_000)))

    assert [one.code for one in found] == ["NOT_FOUND"] * 2
    assert all(len(one.details) < 500 for one in found)


def field(number: int, content: bytes) -> bytes:
    sizes = [len(content) >> shift & 127 | 128 for shift in range(0, 28, 7)]
    return bytes([number << 3 | 2, *sizes, 0]) + content


def memory(kind: str) -> int:
    return int(Path("/proc/self/status").read_text().partition(kind)[2].split()[0]) * 1024


NAMES = b"".join(field(4, field(1, b"%x" % number)) for number in range(200_000))


@pytest.mark.ci
@pytest.mark.parametrize(
    "content",
    [
        *(kind * 10**6 for kind in (b"\x32\0", b"\x2a\0", b"\x3a\0", b"\x7b", b"\x80")),  # outputs, inputs, ...
        NAMES,  # parameters of the request, and of an input
        field(5, NAMES),
        field(5, field(2, b"INT64") + field(3, b"\1" * 10**6)),  # sizes of a shape
        field(5, field(2, b"INT64") + field(5, field(3, b"\1" * 2 * 10**6))),  # numbers
    ],
)
def test_a_refused_message_takes_little_memory_and_delays_no_other_request(archive: Path, content: bytes) -> None:
    """Each of its fields would become an object of 90 bytes, and then one of Python."""

    async def ask() -> tuple[GrpcAnswer, float]:
        archives, stamps = {"sums": served(archive)}, [perf_counter()]
        call = asyncio.create_task(answer("ModelInfer", field(1, b"sums") + content, (), archives))
        while not call.done():
            await asyncio.sleep(0.001)
            stamps.append(perf_counter())
        await archives["sums"].close()
        return call.result(), max(after - before for before, after in pairwise(stamps))

    before = memory("VmRSS:")
    Path("/proc/self/clear_refs").write_text("5")
    refused, delay = asyncio.run(ask())

    assert refused.code == "INVALID_ARGUMENT"
    assert memory("VmHWM:") - before <= 20 * len(content) + 64_000_000
    assert delay < 0.5

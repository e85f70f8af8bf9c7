"""The REST API over an archive in this process, asked through ASGI as servers do."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.routing import Route as StarletteRoute
from starlette.testclient import TestClient
from starlette.types import Message
from tiny_archive import sums_of

from torchserve_neuron_lstm.bucketing.shapes import BucketGrid
from torchserve_neuron_lstm.handlers.formats.npy import read_npy, write_npy
from torchserve_neuron_lstm.handlers.metrics import BatchMetrics
from torchserve_neuron_lstm.handlers.responses import RequestError
from torchserve_neuron_lstm.hosts import held_bodies, rest, served_archive
from torchserve_neuron_lstm.hosts.rest import Route, find_route, respond
from torchserve_neuron_lstm.hosts.served_archive import ArchiveSettings, ServedArchive

JSON = {"content-type": "application/json"}
COUNTED: list[BatchMetrics] = []


def settings(archive: Path) -> ArchiveSettings:
    return ArchiveSettings(str(archive), "sums", threads=1, most_waiting=100)


def count(batch: BatchMetrics, grid: BucketGrid) -> None:
    assert grid.batches == (1, 4)
    COUNTED.append(batch)


@pytest.fixture(scope="module")
def client(archive: Path) -> Iterator[TestClient]:
    archives: dict[str, ServedArchive] = {}

    @asynccontextmanager
    async def lifespan(_: Starlette) -> Any:
        archives["sums"] = ServedArchive(settings(archive), count)
        yield
        await archives["sums"].close()

    async def answer(request: Request) -> Response:
        return await respond(request, archives)

    every = StarletteRoute("/{path:path}", answer, methods=["GET", "POST", "PUT", "DELETE"])
    with TestClient(Starlette(routes=[Mount("/below", routes=[every]), every], lifespan=lifespan)) as started:
        yield started


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        *((path, {}) for path in ("/predictions/sums", "/predictions/sums/2.0", "/below/predictions/sums")),
        ("/predictions/sums", {"explain": "True"}),  # it belongs to the frontend of TorchServe, not to a client
    ],
)
def test_a_sequence_is_answered_as_the_model_answers_it_and_reported_to_the_host(
    client: TestClient, path: str, headers: Mapping[str, str]
) -> None:
    before = len(COUNTED)
    found = client.post(path, content=b"[1, 2, 3]", headers={**JSON, **headers})

    assert found.status_code == 200
    assert found.headers["content-type"] == "application/json"
    torch.testing.assert_close(torch.tensor(found.json()), sums_of([1, 2, 3]))
    (batch,) = COUNTED[before:]
    assert (batch.requests, batch.sequences, batch.stats.real_timesteps) == (1, 1, 3)


def test_v1_v2_and_npy_have_their_own_paths_and_types(client: TestClient) -> None:
    v1 = client.post("/v1/models/sums:predict", content=b'{"instances": [[1], [2, 3]]}', headers=JSON)
    entry = {"name": "ids", "shape": [2], "datatype": "INT64", "data": [2, 3]}
    v2 = client.post("/v2/models/sums/infer", content=json.dumps({"inputs": [entry]}).encode(), headers=JSON)
    npy = {"content-type": "application/x-npy", "accept": "application/x-npy"}
    array = client.post("/predictions/sums", content=write_npy(torch.tensor([2, 3])), headers=npy)

    assert len(v1.json()["predictions"]) == 2
    rounded = [round(number, 4) for number in v2.json()["outputs"][0]["data"]]
    text = json.dumps(v2.json() | {"outputs": [v2.json()["outputs"][0] | {"data": rounded}]}, indent=2)
    assert text + "\n" == Path(__file__).with_name("v2_response.json").read_text(encoding="utf-8")
    assert array.headers["content-type"] == "application/x-npy"
    assert torch.equal(read_npy(array.content), sums_of([2, 3]))


def form(charset: str = "") -> dict[str, str]:
    return {"content-type": f"multipart/form-data; boundary=x{charset}"}


URL_ENCODED = "application/x-www-form-urlencoded"
FORM = b'--x\r\nContent-Disposition: form-data; name="body"\r\n\r\n%b\r\n--x--\r\n'


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "kind"),
    [
        ("POST", "/predictions/other", b"[1]", JSON, 404, "ModelNotFoundException"),
        ("POST", "/predictions/sums/9.9", b"[1]", JSON, 404, "ModelVersionNotFoundException"),
        ("POST", "/nowhere", b"[1]", JSON, 404, "ResourceNotFoundException"),
        ("DELETE", "/predictions/sums", b"", JSON, 405, "MethodNotAllowedException"),
        ("GET", "/predictions/sums", b"", JSON, 405, "MethodNotAllowedException"),
        ("POST", "/v2", b"", JSON, 405, "MethodNotAllowedException"),
        ("DELETE", "/v2/models/sums", b"", JSON, 405, "MethodNotAllowedException"),
        ("POST", "/predictions/sums", b"{", JSON, 400, "MalformedBody"),
        ("POST", "/predictions/sums", b"[1, 99]", JSON, 400, "InvalidInput"),
        ("POST", "/predictions/sums", b"[" + b"1," * 8 + b"1]", JSON, 413, "SequenceTooLong"),
        ("POST", "/predictions/sums", b" " * 7_000_000, JSON, 413, "BodyTooLarge"),
        ("POST", "/predictions/sums", b"[1]", {"content-type": URL_ENCODED}, 400, None),
        ("POST", "/predictions/sums", b"body=" + b"%31" * 200_001, {"content-type": URL_ENCODED}, 400, "MalformedBody"),
        ("POST", "/predictions/sums", b"[1]", {**JSON, "accept": "*" * 70_000}, 431, "InvalidInput"),
        ("POST", "/predictions/sums", b"", JSON, 400, "MalformedBody"),
        ("POST", "/predictions/sums?body=[1]&body=[2]", b"", {}, 400, "MalformedBody"),
        ("POST", "/predictions/sums", FORM % (b" " * 7_000_000), form(), 413, "BodyTooLarge"),
        *(
            ("POST", "/predictions/sums", body, form(charset), 400, "MalformedBody")
            for charset, body in (
                *(("", body) for body in (b"", b"--x\r\n", FORM.replace(b'; name="body"', b"") % b"1")),
                *((f"; charset={charset}", FORM % b"\\udc00") for charset in ("unicode_escape", "undefined")),
            )  # Python knows these two
        ),
    ],
)
def test_a_refusal_has_a_status_and_a_body_for_programs_and_people(
    client: TestClient, method: str, path: str, body: bytes, headers: Mapping[str, str], status: int, kind: str | None
) -> None:
    found = client.request(method, path, content=body, headers=headers)

    assert found.status_code == status
    told = found.json()
    assert told["code"] == status
    assert kind is None or told["type"] == kind
    assert told["message"]


def test_a_form_has_the_body_in_a_field(client: TestClient) -> None:
    file = client.post("/predictions/sums", files={"data": ("x.json", b"[1, 2]", "application/json")})
    field = client.post("/predictions/sums", data={"body": "[1, 2]"})

    for found in (file, field):
        assert found.status_code == 200, found.content
        torch.testing.assert_close(torch.tensor(found.json()), sums_of([1, 2]))


def test_a_model_tells_its_metadata_and_readiness(client: TestClient) -> None:
    told = client.get("/v2/models/sums").json()

    assert (told["name"], told["versions"]) == ("sums", ["2.0"])
    assert told["inputs"] == [{"name": "ids", "datatype": "INT64", "shape": [-1, -1]}]
    assert told["outputs"] == [{"name": "sums", "datatype": "FP32", "shape": [-1, -1, 3]}]
    assert client.get("/v2/models/sums/ready").json()["ready"] is True
    assert client.get("/v1/models/sums").status_code == 200
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/ping").json() == {"status": "Healthy"}
    assert client.get("/v2").json()["extensions"] == ["binary_tensor_data", "sequence"]


def test_a_server_with_an_unready_model_is_unhealthy(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_archive, "readiness", lambda *_: {"ready": False})
    ping, ready = client.get("/ping"), client.get("/v2/health/ready")

    assert (ping.status_code, ping.json()) == (500, {"status": "Unhealthy"})
    assert (ready.status_code, ready.json()["models"]) == (503, {"sums": {"ready": False}})


def test_readiness_that_is_asked_often_at_once_is_tried_once(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try runs the program, before the requests that wait. A caller that goes away ends no other's."""
    tries: list[object] = []

    def tried(*_: object) -> dict[str, object]:
        tries.append(None)
        return {"ready": True}

    monkeypatch.setattr(served_archive, "readiness", tried)

    async def ask() -> None:
        served = ServedArchive(settings(archive), count)
        gone, *others = [asyncio.create_task(served.readiness()) for _ in range(20)]
        await asyncio.sleep(0)
        gone.cancel()
        assert await asyncio.gather(*others) == [{"ready": True}] * 19
        assert len(tries) == 1
        await served.readiness()
        assert len(tries) == 2
        await served.close()

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("path", "version", "status"),
    [
        ("/predictions/sums", None, 404),
        ("/predictions/sums", "3.0", 200),
        ("/predictions/sums/2.0", "3.0", 404),
        ("/v2/models/sums/versions/2.0/infer", "3.0", 404),
    ],
)
def test_an_archive_that_is_replaced_or_removed_while_a_body_is_read_answers_for_its_version_alone(
    archive: Path, path: str, version: str | None, status: int
) -> None:
    async def ask() -> Response:
        archives = {"sums": (served := ServedArchive(settings(archive), count))}

        async def receive() -> Message:
            if version is None:
                del archives["sums"]
            else:
                served.version = version
            return {"type": "http.request", "body": b"[1]"}

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        found = await respond(Request(scope, receive), archives)
        await served.close()
        return found

    assert asyncio.run(ask()).status_code == status


def sent(*parts: bytes, path: str = "/predictions/sums") -> tuple[Request, asyncio.Event]:
    """A request whose body has these parts; its client goes away, before the end, once the event is set."""
    gone, left = asyncio.Event(), [*parts]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"content-type", b"text/json")],
    }

    async def receive() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(0), "more_body": True}
        await gone.wait()
        return {"type": "http.disconnect"}

    return Request(scope, receive), gone


def whole(body: bytes) -> Request:
    """A request that has arrived."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    return Request(sent()[0].scope, receive)


def test_bodies_that_are_read_or_wait_fill_a_bounded_memory(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client could send all but the end of many. One body of the largest size fits alone."""
    monkeypatch.setattr(held_bodies, "_MOST_BYTES", 0)
    large, small = b" " * 6_500_000, b" " * 1_000_000 + b"[1]"

    async def ask() -> None:
        archives = {"sums": (served := ServedArchive(settings(archive), count))}
        for parts, status in (((large,), 503), ((large, large, large), 200)):  # the second is beyond the largest size
            unfinished, gone = sent(*parts)
            reading = asyncio.create_task(respond(unfinished, archives))
            await asyncio.sleep(0.01)
            found = await respond(whole(small), archives)
            gone.set()
            assert found.status_code == status
            assert status == 200 or json.loads(bytes(found.body))["message"].endswith("; send the request again")
            assert (await reading).status_code == 499
            assert (await respond(whole(small), archives)).status_code == 200
        waiting = [asyncio.create_task(respond(whole(large[:-2_000_000] + b"[1]"), archives)) for _ in range(3)]
        assert sorted([(await one).status_code for one in waiting]) == [200, 503, 503]
        await served.close()

    asyncio.run(ask())


def test_a_body_that_does_not_end_is_refused_after_its_time(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "_BODY_SECONDS", 0.05)

    async def ask() -> Response:
        archives = {"sums": (served := ServedArchive(settings(archive), count))}
        found = await respond(sent(b"[1, ")[0], archives)
        assert held_bodies.HeldBody._all_bytes == 0
        await served.close()
        return found

    found = asyncio.run(ask())

    assert (found.status_code, found.headers["connection"]) == (408, "close")
    assert json.loads(bytes(found.body))["type"] == "BodyTooSlow"


def test_a_full_queue_refuses_a_request_before_its_body_is_read(archive: Path) -> None:
    async def ask() -> list[int]:
        archives = {"sums": (served := ServedArchive(replace(settings(archive), most_waiting=0), count))}
        found = [await respond(sent(path=f"/predictions/{path}")[0], archives) for path in ("sums", "x", "sums/9")]
        await served.close()
        return [one.status_code for one in found]

    assert asyncio.run(asyncio.wait_for(ask(), 60)) == [503, 404, 404]


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("POST", "/predictions/m", Route("infer", "m")),
        ("PUT", "/predictions/m/2.0", Route("infer", "m", "2.0")),
        ("POST", "/v1/models/m:predict", Route("infer", "m")),
        ("POST", "/v2/models/m/infer", Route("infer", "m")),
        ("POST", "/v2/models/m/versions/2.0/infer", Route("infer", "m", "2.0")),
        ("GET", "/v1/models/m", Route("model ready", "m")),
        ("GET", "/v2/models/m/versions/1/ready", Route("model ready", "m", "1")),
        ("GET", "/v2/models/m", Route("model metadata", "m")),
        ("GET", "/v2", Route("server metadata")),
        ("GET", "/v2/", Route("server metadata")),
        ("GET", "/v2/health/live", Route("live")),
        ("GET", "/v2/health/ready", Route("ready")),
        ("GET", "/ping", Route("ping")),
    ],
)
def test_a_path_names_an_action_and_a_model(method: str, path: str, route: Route) -> None:
    assert find_route(method, path) == route


@given(st.text(max_size=60))
def test_no_path_makes_it_fail(path: str) -> None:
    with pytest.raises(RequestError):
        find_route("GET", f"/ping/{path}")

"""Archives on KServe: the responses are those of the service in process, over both protocols."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from grpc_calls import WRONG, Wrong, broken_messages, call, client, equal_over_rest, infer, request, tensor
from host_archives import Archives, assert_scores_of_the_whole, in_process
from mixed_requests import frames_of, mixed_requests
from rest import JSON, get, post

from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.hosts.grpc.messages import message_class

from .conftest import MODELS, MODULE, KServe, started

pytestmark = pytest.mark.timeout(300)
REQUESTS = 500
WITHOUT_ENGINE = f"""
import runpy, sys
sys.modules["onnxruntime"] = None
runpy.run_module("{MODULE}", run_name="__main__", alter_sys=True)
"""
FAILING_SERVER = f"""
import sys
from types import SimpleNamespace
import {MODULE} as host

async def close():
    print("closed")

def fail():
    raise RuntimeError("the port is taken")

sys.argv = ["kserve", "--archive", "a.mar"]
host.load = lambda *_: SimpleNamespace(name="a", close=close)
host.ArchiveServer = lambda _: SimpleNamespace(serve=fail)
host.main()
"""


def test_500_mixed_requests_have_equal_bytes_on_kserve_and_in_process(
    kserve: Mapping[str, KServe], archives: Archives
) -> None:
    services = dict(in_process(archives, MODELS))
    differing, statuses = [], set()
    for model, path, body, headers in mixed_requests(REQUESTS):
        name = "roaming" if model == "stream" else model  # sessions on this host's disk are not for KServe
        found = post(kserve[name].http, path.replace("stream", "roaming"), body, headers)
        (own,) = services[name].handle([RawRequest({"body": body}, headers)])
        statuses.add(found.status)
        if (found.status, found.body) != (own.status, own.body):
            differing.append((path, body[:80], found, own))

    assert differing == []
    assert statuses == {200, 400, 413}


def test_tritons_clients_find_health_readiness_and_metadata(kserve: Mapping[str, KServe]) -> None:
    server = kserve["tagger"]
    with triton.InferenceServerClient(f"127.0.0.1:{server.http}") as rest, client(server.grpc) as called:
        for one in (rest, called):
            assert one.is_server_live()
            assert one.is_server_ready()
            assert one.is_model_ready("tagger", "1.0")
            assert not one.is_model_ready("nothing")
        told, also = rest.get_model_metadata("tagger"), called.get_model_metadata("tagger")
    assert told["name"] == also.name == "tagger"
    assert [(one["name"], one["shape"]) for one in told["outputs"]] == [
        (one.name, [*one.shape]) for one in also.outputs
    ]
    assert get(server.http, "/v2/models").json == {"models": ["tagger"]}


@pytest.mark.parametrize("length", [1, 9, 16])
def test_outputs_over_grpc_are_those_of_rest_bit_for_bit(kserve: Mapping[str, KServe], length: int) -> None:
    frames, ids = frames_of(length, length)[None], np.random.default_rng(length).integers(0, 20, (1, length))

    assert equal_over_rest(kserve["scorer"].http, kserve["scorer"].grpc, "scorer", {"frames": frames})
    assert equal_over_rest(kserve["tagger"].http, kserve["tagger"].grpc, "tagger", {"ids": ids, "frames": frames})


def test_a_session_with_the_client_goes_over_grpc_in_pieces(kserve: Mapping[str, KServe], archives: Archives) -> None:
    frames, found, token = frames_of(21, 1), [], ""
    with client(kserve["roaming"].grpc) as called:
        for start, end in ((0, 4), (4, 9), (9, 21)):
            flags = {"sequence_id": 7, "sequence_start": start == 0, "sequence_end": end == 21}
            parameters = {"ts_request_sequence_token": token} if token else None
            piece = [tensor("frames", frames[None, start:end])]
            response = called.infer("roaming", piece, parameters=parameters, **flags)
            found.append(response.as_numpy("scores")[0])
            token = response.get_response().parameters["ts_request_sequence_token"].string_param
    assert_scores_of_the_whole(archives, frames, found)


@pytest.mark.parametrize("wrong", WRONG, ids=[one.change for one in WRONG])
def test_a_refusal_has_a_code_a_type_and_a_message(kserve: Mapping[str, KServe], wrong: Wrong) -> None:
    found = infer(kserve["scorer"].grpc, request(**wrong.fields))

    assert (found.code, found.trailing.get("error-type")) == (wrong.code, wrong.kind)
    assert wrong.told in found.details


def test_broken_messages_end_with_a_code_and_the_server_lives(kserve: Mapping[str, KServe]) -> None:
    port = kserve["scorer"].grpc
    codes = {call(port, "ModelInfer", content).code for content in broken_messages(60)}

    assert codes <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND"}
    assert infer(port, request()).code == "OK"


def test_batches_are_counted_where_kserve_shows_its_metrics(kserve: Mapping[str, KServe]) -> None:
    assert infer(kserve["scorer"].grpc, request()).code == "OK"
    text = get(kserve["scorer"].http, "/metrics").body.decode()

    assert 'neuron_lstm_requests_total{ModelName="scorer",ModelVersion="1.0"}' in text
    assert 'neuron_lstm_batch_seconds_bucket{ModelName="scorer"' in text


def test_nobody_unloads_a_model_by_a_request(kserve: Mapping[str, KServe]) -> None:
    """KServe has a route for it, without any check; what it reads has no bound."""
    for path in ("/v2/repository/models/scorer/unload", "/v2/repository/models/%0a/unload", "/v2/repository/index%0a"):
        assert post(kserve["scorer"].http, path, b"").json["type"] == "ResourceNotFoundException"
    for path in ("/v2/models/%0ascorer/infer", "/v1/models/%0ascorer:predict", "/predictions/%0ascorer"):
        assert post(kserve["scorer"].http, path, bytes(10_000_000)).json["type"] == "ModelNotFoundException"
    for path in ("/v2/models/scorer%0aINFO/infer", "/v1/models/x%0aINFO", "/%0aINFO", "/metrics%0aINFO"):
        assert post(kserve["scorer"].http, path, b"").status in {404, 405}
    assert "\nINFO" not in kserve["scorer"].log.read_text()
    assert [get(kserve["scorer"].http, path).status for path in ("/", "/metrics", "/v1/models", "/v2/models")] == [
        200
    ] * 4
    assert len(get(kserve["scorer"].http, f"/v2/models/{'x' * 60_000}/ready").body) < 400
    assert get(kserve["scorer"].http, "/v2/models/scorer/ready").status == 200


def test_a_request_that_is_being_read_when_a_signal_comes_is_answered(archives: Archives, tmp_path: Path) -> None:
    with started(archives.path("scorer"), tmp_path / "log") as server:
        server.wait()
        body = json.dumps(frames_of(16, 0).tolist()).encode()
        with (
            socket.create_connection(("127.0.0.1", server.http), timeout=60) as connection,
            connection.makefile("rb") as got,
        ):
            head = f"POST /predictions/scorer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            connection.sendall(f"{head}Expect: 100-continue\r\nContent-Type: application/json\r\n\r\n".encode())
            assert got.readline() == b"HTTP/1.1 100 Continue\r\n"
            server.process.send_signal(signal.SIGTERM)
            while b"Shutting down" not in server.log.read_bytes():
                assert server.process.poll() is None
            connection.sendall(body)
            assert got.read().startswith(b"\r\nHTTP/1.1 200")

        assert server.process.wait(60) == 0


def test_without_the_engine_it_is_live_and_tells_why_it_is_not_ready(archives: Archives, tmp_path: Path) -> None:
    with started(archives.path("scorer"), tmp_path / "log", ("-c", WITHOUT_ENGINE)) as server:
        server.wait()
        ready, model = get(server.http, "/v2/health/ready"), get(server.http, "/v2/models/scorer/ready")
        refused = post(server.http, "/predictions/scorer", b"[[1, 2, 3]]", JSON)
        over_grpc = infer(server.grpc, request())
        server_ready = call(server.grpc, "ServerReady", b"").message

    assert (ready.status, model.status, refused.status, over_grpc.code) == (503, 503, 503, "UNAVAILABLE")
    assert "onnxruntime" in ready.json["models"]["scorer"]["reason"]
    assert "onnxruntime" in model.json["reason"]
    assert "onnxruntime" in over_grpc.details
    assert "/" not in model.json["reason"] + over_grpc.details  # paths of the host are for its log
    assert not message_class("ServerReadyResponse").FromString(server_ready).ready
    assert "onnxruntime" in server.log.read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--archive", "none.mar"], "there is no archive none.mar"),
        ([], "--archive"),
        (["--archive", "none.mar", "--workers", "2"], "--workers: expected 1, got 2"),
        (["--archive", "none.mar", "--threads", "0"], "--threads: expected 1 or more, got 0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(words: list[str], told: str) -> None:
    done = subprocess.run([sys.executable, "-m", MODULE, *words], capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_the_archive_is_closed_when_the_server_fails() -> None:
    """Its unpacked files would stay."""
    done = subprocess.run([sys.executable, "-c", FAILING_SERVER], capture_output=True, text=True, check=False)

    assert done.stdout == "closed\n", done.stderr
    assert "RuntimeError: the port is taken" in done.stderr

"""The handler under TorchServe's own Python code: its loader, service and wire format, without Java."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from fake_context import FakeContext
from tiny_archive import change_manifest, sums_of
from worker import loaded, predict, request

import torchserve_neuron_lstm.config
from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list
from torchserve_neuron_lstm.handlers import open_service, torchserve
from torchserve_neuron_lstm.handlers.formats.npy import read_npy, write_npy

JSON = "application/json"
METRICS_FILE = Path(torchserve_neuron_lstm.config.__path__[0]) / "metrics.yaml"


@pytest.fixture(scope="module")
def service(pristine: Path) -> Iterator[Any]:
    with loaded(pristine) as started:
        yield started


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Restore the threads of torch, which a worker sets permanently."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def assert_answers(body: bytes, ids: list[int]) -> None:
    torch.testing.assert_close(torch.tensor(json.loads(body)), sums_of(ids))


def test_every_row_of_a_batch_gets_its_own_status_content_type_and_body(service: Any) -> None:
    answers = predict(
        service,
        [
            request(b"[1, 2, 3]", JSON),
            request(b'{"ids": [1, "\\r\\n\\u2028"]}', JSON),
            request(b"[7]", "application/octet-stream", {"explain": "False"}),
            request(b"[" + b"1," * 8 + b"1]", JSON),
            request(b"{", JSON, {"url_path": ""}),
            request(write_npy(torch.tensor([4, 5])), "application/x-npy", {"Accept": "application/x-npy"}),
            request(b"[1]", JSON, {"explain": "True"}),
            request(b"[2]", JSON, {"describe": "True"}),
            request(b'{"instances": [[1], [2]]}', JSON, {"accept": "application/x-npy"}),
            request(b'{"instances": [[1], [99]]}', JSON),
        ],
    )

    assert [answer.status for answer in answers] == [200, 400, 200, 413, 400, 200, 501, 200, 406, 400]
    assert [answer.phrase for answer in answers][1] == "Bad Request"
    assert_answers(answers[0].body, [1, 2, 3])
    assert answers[5].headers == {"content-type": "application/x-npy"}
    assert torch.equal(read_npy(answers[5].body), sums_of([4, 5]))
    for answer in answers:
        if answer.status != 200:
            refusal = json.loads(answer.body)
            assert list(refusal) == ["code", "type", "message"]
            assert refusal["code"] == answer.status
    assert json.loads(answers[9].body)["message"].startswith("instances[1]: input 'ids'")


def test_a_row_without_a_body_asks_what_the_model_is(service: Any) -> None:
    """TorchServe sends such a row for `GET /models/M?customized=true`."""
    (answer,) = predict(service, [request(None, headers={"describe": "True"})])

    told = json.loads(answer.body)
    assert told["inputs"] == [{"name": "ids", "dtype": "int64", "shape": ["batch", "time"], "vocabulary": 20}]
    assert told["buckets"] == {"batch": [1, 4], "length": [4, 8]}
    assert told["backend"] == "eager"
    assert told["costs"][0] == {"program": "sequence", "batch": 1, "length": 4, "milliseconds": 0.5}
    assert (told["estimates"], told["simulation"]) == ([], None)


def test_the_user_codec_of_an_archive_is_used(archive: Path) -> None:
    change_manifest(archive, codec="codec_of_tests:Codec")
    write_list(archive)
    with loaded(archive) as service:
        good, bad = predict(service, [request(b"1 2", "text/plain"), request(b"one", "text/plain")])

    first, second = (row[0].item() for row in sums_of([1, 2]))
    assert (good.body.decode(), good.headers["content-type"]) == (f"{first:.3f} {second:.3f}", "text/plain")
    assert bad.status == 400
    assert "invalid literal for int" in json.loads(bad.body)["message"]


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda folder: (folder / "weights.pt").unlink(), "weights.pt is missing"),
        (lambda folder: (folder / "variants.json").unlink(), "variants.json"),
        (lambda folder: (folder / "variants.json").write_text("{}"), "variants.json"),
        (lambda folder: (folder / "index_to_name.json").write_text("{}"), "index_to_name.json"),
    ],
)
def test_what_cannot_be_loaded_is_one_runtime_error_of_one_line(archive: Path, spoil: Any, told: str) -> None:
    """TorchServe reports no other kind of error, and would restart the worker again and again."""
    spoil(archive)

    with pytest.raises(RuntimeError) as refused, loaded(archive):
        pass
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_any_other_error_while_loading_becomes_a_runtime_error(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_service, "load_codec", Mock(side_effect=KeyError("surprise")))
    with pytest.raises(RuntimeError, match="KeyError: 'surprise'"):
        torchserve.load(FakeContext(model_dir=archive))


def test_a_server_with_an_envelope_is_told_to_remove_it(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the model would be ready, and each request would fail."""
    monkeypatch.setattr(torchserve, "read_server_properties", lambda _: {"service_envelope": "kservev2"})
    with pytest.raises(RuntimeError, match=r"service_envelope=kservev2, which changes .*: remove it"):
        torchserve.load(FakeContext(model_dir=archive))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("yaml", "threads"),
    [({"maxWorkers": 2}, 4), ({"maxWorkers": 8}, 1), ({"maxWorkers": "2"}, 1), (None, 1), ({"maxWorkers": 1}, 8)],
)
def test_workers_share_the_cores(
    archive: Path, yaml: Mapping[str, object] | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without maxWorkers, TorchServe starts one worker for each core."""
    monkeypatch.setattr(open_service, "available_cores", lambda: 8)

    service = torchserve.load(FakeContext(model_dir=archive, model_yaml_config=yaml))

    assert service.description["threads"] == threads
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(("gpu", "device"), [(None, None), (-1, None), ("0", None), (0, "cuda:0"), (3, "cuda:3")])
def test_torchserve_gives_each_worker_its_gpu(gpu: object, device: str | None, tmp_path: Path) -> None:
    """On a host without GPUs its index is None or negative."""
    assert torchserve.host_of(FakeContext(model_dir=tmp_path, gpu_id=gpu)).device == device


def told_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    mine = (record for record in caplog.records if record.name.endswith("handlers.torchserve"))
    lines = [line for record in mine for line in record.getMessage().splitlines()]
    return [line for line in lines if line.startswith(("neuron_lstm", "[METRICS]"))]


def batch() -> list[dict[str, Any]]:
    return [request(body, JSON) for body in (b"[1, 2, 3]", b"{", b"[4]", b"[5, 6, 7]")]


def test_each_batch_is_told_to_the_server_by_the_metrics_it_declares(
    archive: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The lengths go to the log, which `neuron-lstm tune` reads."""
    caplog.set_level(logging.INFO)
    with loaded(archive, METRICS_FILE) as service:
        predict(service, batch())

    lengths, *metrics = told_of(caplog)
    assert lengths == "neuron_lstm lengths 1:1 3:2"
    told = {line.partition("|#hostname")[0] for line in metrics}
    model = "ModelName:sums,ModelVersion:2.0,Level:Model|#type:COUNTER"
    assert f"[METRICS]neuron_lstm_requests_total.Count:4|#{model}" in told
    assert f"[METRICS]neuron_lstm_rejected_total.Count:1|#Reason:MalformedBody,{model}" in told
    assert any(line.startswith("[METRICS]neuron_lstm_batch_seconds.Seconds:") for line in told)


def test_a_server_whose_metrics_file_knows_nothing_of_us_is_told_nothing(
    service: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The server would write every line to its log and drop it."""
    caplog.set_level(logging.INFO)
    predict(service, batch())
    predict(service, [request(b"{", JSON)])
    predict(service, [request(None, headers={"describe": "True"})])

    assert told_of(caplog) == ["neuron_lstm lengths 1:1 3:2"]


def test_a_batch_that_cannot_be_counted_is_answered(pristine: Path, caplog: pytest.LogCaptureFixture) -> None:
    context = FakeContext(headers=[{}], model_dir=pristine)
    service = replace(torchserve.load(context), report=Mock(side_effect=OSError("the log is full")))

    (body,) = torchserve.handle(service, [{"body": b"[1, 2]"}], context)

    assert_answers(body, [1, 2])
    assert "the metrics of a batch could not be reported" in caplog.text


GRPC = {"body": {"content-type": ""}}
"""The headers of a request over gRPC: only those of its fields."""
HTTP = {"body": {"content-type": JSON}, "content-length": "6", "url_path": ""}


def test_a_response_over_grpc_says_that_nothing_follows_it(pristine: Path) -> None:
    """TorchServe's StreamPredictions kills a worker that does not say so; over HTTP it must not be said."""
    context = FakeContext(headers=[GRPC, HTTP, GRPC, {}], model_dir=pristine)
    service = torchserve.load(context)

    torchserve.handle(service, [{"body": b"[1, 2]"}, {"body": b"[1, 2]"}, {"body": b"{"}, {}], context)

    last = {"ts_stream_next": "false"}
    assert [context.response_headers.get(row, {}) for row in range(4)] == [last, {}, last, last]


BARE = """
import sys
sys.path[:0] = [{archive!r}, {support!r}]
from worker import loaded, predict, request
from pathlib import Path
with loaded(Path({archive!r})) as service:
    sys.stdout.buffer.write(predict(service, [request(b"[1, 2, 3]", "application/json")])[0].body)
    ours = [name for name in sys.modules if name.startswith("torchserve_neuron_lstm")]
    assert ours
    for name in ours:
        assert sys.modules[name].__file__.startswith({archive!r}), sys.modules[name].__file__
    assert not any(name.startswith("torchserve_neuron_lstm.archiver_ext") for name in sys.modules)
    assert not {{"numpy", "yaml_", "pydantic", "rich", "orjson", "safetensors"}} & set(sys.modules) - before
"""


@pytest.mark.ci
def test_an_archive_serves_by_its_own_code_wherever_the_plug_in_is_installed(pristine: Path) -> None:
    program = "import sys, ts.model_loader, torch\nbefore = set(sys.modules)\n" + BARE.format(
        archive=str(pristine), support=str(Path(__file__).parents[1] / "support")
    ).replace(', "orjson"', "")
    run = subprocess.run([sys.executable, "-c", program], cwd=pristine, capture_output=True, check=False)

    assert run.returncode == 0, run.stderr.decode()
    with loaded(pristine) as service:
        assert run.stdout == predict(service, [request(b"[1, 2, 3]", JSON)])[0].body


@pytest.mark.ci
def test_an_import_error_in_the_archive_is_told_as_what_it_is(archive: Path) -> None:
    """TorchServe would report that there is no handler called ts.torch_handler.neuron_lstm."""
    (archive / "torchserve_neuron_lstm" / "handlers" / "torchserve.py").write_text("import no_such_module\n")
    write_list(archive)
    support = str(Path(__file__).parents[1] / "support")
    command = [sys.executable, "-c", BARE.format(archive=str(archive), support=support)]
    run = subprocess.run(command, cwd=archive, capture_output=True, text=True, check=False)

    assert run.returncode != 0
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: the archive's code cannot be loaded on this host: ")
    assert "no_such_module" in last

"""Benchmarks: each program runs on a tiny setting and writes its JSON, and its statistics are right."""

import doctest
import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from graph_device import GraphDevice
from tools.bench import __main__ as bench
from tools.bench import compare, engines, gpu, serve
from tools.bench.engines import FmaLoop
from tools.bench.harness import BenchmarkFailed, refuse_differences, take_turns
from tools.bench.load import Loaded, http_post, load
from tools.bench.ragged import Case, Size
from torch_kernel import TorchKernel

from torchserve_neuron_lstm.archiver_ext.archive.file_list import list_body, list_text
from torchserve_neuron_lstm.backends.cuda.torch_device import gpu_missing
from torchserve_neuron_lstm.config.manifest import FILE_NAME, sha256_of
from torchserve_neuron_lstm.handlers.neuron_lstm import LIST

TINY = Size(3, 5, 1)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ["harness", "ragged", "report", "train"])
def test_worked_examples_hold(name: str) -> None:
    """Folders of tools are not searched for them."""
    tried = doctest.testmod(import_module(f"tools.bench.{name}"))
    assert (tried.failed, tried.attempted > 0) == (0, True)


@pytest.mark.parametrize("name", bench.PROGRAMS)
def test_each_program_lists_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        bench.main([name, "--help"])
    assert "--json FILE" in capsys.readouterr().out
    assert bench.main([]) == 2
    assert name in capsys.readouterr().err


def run(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    file = tmp_path / "figures.json"
    assert bench.main([*arguments, "--json", str(file)]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    assert set(found) == {"program", "about", "tables", "notes"}
    assert set(found["about"]) == {"date", "command", "machine", "python", "versions"}
    assert all(row["figures"] for table in found["tables"] for row in table["rows"])
    return found


def contestants(found: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["contestant"] for row in found["tables"][0]["rows"]))


@pytest.mark.ci
@pytest.mark.timeout(600)
def test_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "CASES", (Case("tiny", TINY, ((3, 7, 1),)),))
    found = run(tmp_path, "engines", "--rounds", "1")

    assert contestants(found) == [
        "this engine", "ONNX Runtime planned", "ONNX Runtime padded", "eager packed", "eager padded"
    ]  # fmt: skip


@pytest.mark.timeout(300)
def test_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    found = run(tmp_path, "train", "--lengths", "4", "--rounds", "1", "--batch", "8")

    assert len({row["case"] for row in found["tables"][0]["rows"]}) == 4
    assert contestants(found) == ["pack/unpack", "pad and mask", "lower"]
    assert found["notes"] == ["nothing is compiled: there is no C++ compiler"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_servers(tmp_path: Path) -> None:
    options = "--rounds 1 --seconds 0.5 --warm-up 0.1 --clients 8 --workers 1 --precisions --set job_queue_size=500"
    found = run(tmp_path, "serve", *options.split())

    assert contestants(found) == [
        "plain, stock, 1 worker", "ours, stock, 1 worker", "ours, serve, 1 worker", "ours, builtin, 1 worker",
        "ours, serve, 1 worker, job_queue_size=500",
    ]  # fmt: skip


def test_servers_are_compared_with_the_faster_plain_one_and_by_the_faster_built_in_one() -> None:
    times = {"plain, stock, 1 worker": 8, "plain, stock, 2 workers": 4, "ours, builtin, 1 worker": 2, "mosec": 1}
    taken = {name: [serve.Turn(Loaded([time] * 100, time), time / 10)] for name, time in times.items()}
    many, alone = serve._tables({64: taken, 1: taken}, dict.fromkeys(times, 100.0) | {"mosec": 50.0})

    mosec, ours = ({row.contestant: row.figures for row in many.rows}[name] for name in ("mosec", [*times][2]))
    assert (many.title, alone.title) == ("Under the load of 64 clients", "Under the load of 1 client")
    assert (ours["core-ms, times plain"], ours["requests/s, times plain"]) == (0.5, 2.0)
    assert (mosec["core-ms, builtin's times this"], mosec["MB, builtin's times this"]) == (2.0, 2.0)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "TURNS", 1)
    found = run(tmp_path, "compare", "HEAD", "--pairs", "1", "--packagings", "1")

    assert [len(table["rows"]) for table in found["tables"]] == [7, 5]


def double(_index: int, *, own_kernel: bool) -> GraphDevice:
    return GraphDevice(kernel=TorchKernel() if own_kernel else None)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_contestants_on_a_gpu(bidirectional: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("no kernel\nmore")

    monkeypatch.setattr(torch, "compile", broken)
    case = Case("small", replace(TINY, bidirectional=bidirectional), ((6, 4, 3, 1),))
    made, reasons, errors = gpu.compare(case, tmp_path, double, torch.device("cpu"))

    wrong = "wrong: padding comes first in the reverse direction"
    assert reasons["torch.compile reduce-overhead"] == (wrong if bidirectional else "RuntimeError: no kernel")
    assert ("eager padded" in made) != bidirectional == ("eager padded" in reasons)
    assert max(errors["cuda"], errors["cuda, cuDNN's kernels"]) <= 1e-5
    assert 1e-5 < errors["cuda, float16"] < errors["cuda, bfloat16"] < 3e-2


@pytest.mark.skipif(gpu_missing() is None, reason="not run: there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["gpu"]) == 1
    assert capsys.readouterr().err.startswith("the benchmark failed: not run: ")


def test_calls_take_turns() -> None:
    called: list[str] = []
    times = {"a": iter([4.0, 9.0, 3.0, 1.0, 8.0]), "b": iter([20.0, 30.0])}

    def timed(name: str) -> Any:
        return lambda: called.append(name)

    def timer(call: Any) -> float:
        call()
        return next(times[called[-1]])

    seconds = take_turns({name: timed(name) for name in "ab"}, timer, 9, slice_s=10.0, limit_s=0.0, fewest=2)

    assert seconds == {"a": (6.5, 3.0), "b": (20.0, 30.0)}
    assert called[:4] == ["a", "a", "b", "b"]


def test_the_loop_counts_its_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = FmaLoop(1, tmp_path)
    assert loop.gflops([0.02, 0.01]) == 2 * loop.gflops([0.02]) > 0
    monkeypatch.setenv("CXX", "no-compiler")
    with pytest.raises(BenchmarkFailed, match="no-compiler"):
        FmaLoop(1, tmp_path)


@pytest.mark.parametrize("wrong", [torch.tensor([1.1]), torch.tensor([float("nan")]), torch.ones(2)])
def test_a_difference_ends_the_run(wrong: torch.Tensor) -> None:
    refuse_differences("ours", [torch.tensor([1.000001])], [torch.ones(1)], 1e-5)
    with pytest.raises(BenchmarkFailed, match="ours: "):
        refuse_differences("ours", [wrong], [torch.ones(1)], 1e-5)


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200 if body != b"bad" else 400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:1])
        self.wfile.flush()
        self.wfile.write(body[1:])

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has in the class above
        """Print no log."""


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield http.server_address[1]
        http.shutdown()
        thread.join()


def test_clients_time_each_answer(port: int) -> None:
    done = load(port, [http_post("/a", b"[1, 2]"), http_post("/b", b"x" * 100_000)], connections=4, seconds=0.2)

    assert len(done.milliseconds) >= 4
    assert all(0 < milliseconds <= done.seconds * 1000 for milliseconds in done.milliseconds)
    with pytest.raises(BenchmarkFailed, match="400"):
        load(port, [http_post("/a", b"bad")], connections=2, seconds=0.2)


def archive(folder: Path, milliseconds: float, bucket: int = 8) -> Path:
    folder.mkdir()
    costs = [{"bucket": bucket, "milliseconds": milliseconds}]
    (folder / FILE_NAME).write_text(json.dumps({"costs": costs, "padding_costs": []}))
    (folder / LIST).write_bytes(list_of(folder))
    return folder


def list_of(folder: Path) -> bytes:
    digests = dict.fromkeys(("neuron_lstm.py", "torchserve_neuron_lstm/handlers/runtime/checked_modules.py"), "0" * 64)
    return list_text(list_body({**digests, FILE_NAME: sha256_of(folder / FILE_NAME)}))


def test_both_archives_plan_alike(tmp_path: Path) -> None:
    base, head = archive(tmp_path / "base", 1.0), archive(tmp_path / "head", 2.0)

    assert compare.share_costs(base, head)
    assert json.loads((head / FILE_NAME).read_text()) == json.loads((base / FILE_NAME).read_text())
    assert (head / LIST).read_bytes() == list_of(head)
    assert not compare.share_costs(base, archive(tmp_path / "other", 2.0, bucket=16))
    assert not compare.share_costs(tmp_path / "another layout", head)


def test_other_answers_and_other_code_are_refused(tmp_path: Path) -> None:
    """Errors are answered fast, and an installed package would be measured twice."""
    compare.refuse_other_answers(["[1.0]"], ["[1.00001]"])
    with pytest.raises(BenchmarkFailed, match="request 0 to the base and to the head: "):
        compare.refuse_other_answers(["[1.0]"], ["[1.1]"])
    for folder, text in (("archive", "A = 1\n"), ("root/src/torchserve_neuron_lstm", "A = 2\n")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_text(text)
    with pytest.raises(BenchmarkFailed, match=r"is not served by that commit's a\.py"):
        compare.refuse_other_code(tmp_path / "archive", compare.Side("base", "abc", tmp_path / "root"))


def test_the_working_tree_is_copied_as_it_stands(tmp_path: Path) -> None:
    root, folder = tmp_path / "repository", tmp_path / "checkouts"
    root.mkdir()
    folder.mkdir()
    for name, text in {"edited": "1", "gone": "", ".gitignore": "ignored\n"}.items():
        (root / name).write_text(text)
    user = ("-c", "user.name=A", "-c", "user.email=a@example.com")
    for words in (("init", "-q"), ("add", "-A"), (*user, "commit", "-q", "-m", "A change")):
        subprocess.run(["git", *words], cwd=root, check=True)
    (root / "gone").unlink()
    for name in ("edited", "new", "ignored"):
        (root / name).write_text("2")

    base, head = compare.checked_out(root, "HEAD", folder)

    assert {file.name: file.read_text() for file in base.root.iterdir() if file.name[0] != "."} == {
        "edited": "1",
        "gone": "",
    }
    assert {file.name: file.read_text() for file in head.root.iterdir() if file.name[0] != "."} == {
        "edited": "2",
        "new": "2",
    }
    assert base.commit.endswith(" A change")
    status = subprocess.run(["git", "status", "--short"], cwd=root, capture_output=True, text=True, check=True).stdout
    assert status == " M edited\n D gone\n?? new\n"
    with pytest.raises(BenchmarkFailed, match="no-commit"):
        compare.checked_out(root, "no-commit", folder)

"""Saving and loading: one file, also for another process; damaged files are refused."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from traceable import Conv, TimeMajor

from torchserve_neuron_lstm import tracing
from torchserve_neuron_lstm.backends.interface import LoadError


def run_python(*arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr


RUN = """
import sys, torch
from torchserve_neuron_lstm import tracing
x = torch.load("x.pt")
torch.save([tracing.load(name)(x) for name in sys.argv[1:]], "answers.pt")
"""


@pytest.mark.ci
def test_another_process_answers_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, backends = torch.rand(5, 2, 4), ("eager", "native", "onnxruntime")
    traces = [tracing.trace(TimeMajor(), torch.rand(5, 2, 4), backend=backend) for backend in backends]
    for traced, backend in zip(traces, backends, strict=True):
        traced.save(backend)
    torch.save(x, "x.pt")

    run_python("-c", RUN, *backends)

    answers = torch.load("answers.pt")
    assert all(torch.equal(answer, traced(x)) for answer, traced in zip(answers, traces, strict=True))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_autocast_of_the_caller_changes_nothing(backend: str) -> None:
    traced, x = tracing.trace(nn.Linear(4, 3), torch.rand(1, 4), backend=backend), torch.rand(1, 4)
    with torch.autocast("cpu"):
        answer = traced(x)

    assert torch.equal(answer, traced(x))


FORK = """
import os, signal, threading, torch
from torchserve_neuron_lstm import tracing

x = torch.ones(1, 2)
inside, done = threading.Event(), threading.Event()

def kernel(tensors):
    if threading.current_thread() is other:
        inside.set()
        done.wait(30)
    return tensors, torch.tensor(0)

config = tracing.BucketModelConfig(lambda: kernel)
other = None
traced = tracing.bucket_model_trace(lambda: (torch.nn.Linear(2, 2), {}), [x], config, backend="eager")
other = threading.Thread(target=traced, args=(x,))
other.start()
inside.wait(30)
child = os.fork()
if child == 0:
    signal.alarm(10)
    traced(x)
    os._exit(0)
status = os.waitpid(child, 0)[1]
done.set()
other.join()
raise SystemExit(status != 0)
"""


@pytest.mark.ci
def test_a_fork_within_a_call_of_another_thread_can_call_too() -> None:
    """The fork has no such thread, which would end that call."""
    run_python("-W", "ignore", "-c", FORK)


def test_a_loaded_trace_is_saved_again(tmp_path: Path) -> None:
    traced, x = tracing.trace(Conv(), torch.rand(1, 1, 3, 3), backend="eager"), torch.rand(1, 1, 3, 3)
    traced.save(tmp_path / "first")
    second = tracing.load(tmp_path / "first")
    (tmp_path / "first").unlink()
    second.save(tmp_path / "second")

    assert torch.equal(tracing.load(tmp_path / "second")(x), traced(x))


def test_saving_leaves_one_file_and_replaces_another(tmp_path: Path) -> None:
    traced = tracing.trace(Conv(), torch.rand(1, 1, 3, 3), backend="eager")
    (tmp_path / "model").write_text("something else")

    traced.save(tmp_path / "model")

    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    tracing.load(tmp_path / "model")


def test_the_programs_on_disk_go_with_the_trace() -> None:
    traced = tracing.trace(Conv(), torch.rand(1, 1, 3, 3), backend="eager")
    folder = traced.directory
    assert folder.is_dir()

    del traced

    assert not folder.exists()


def changed(source: Path, target: Path, **members: bytes | None) -> None:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = members.get(name.replace(".", "_"), old.read(name))
            if content is not None:
                new.writestr(name, content)


def test_what_is_no_whole_traced_file_is_refused(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    tracing.trace(Conv(), torch.rand(1, 1, 3, 3), backend="eager").save(good)
    with pytest.raises(LoadError, match="cannot be read as a traced file"):
        tracing.load(tmp_path / "missing")
    bad.write_bytes(good.read_bytes()[:-40])
    with pytest.raises(LoadError, match="cannot be read as a traced file"):
        tracing.load(bad)
    with zipfile.ZipFile(good) as archive:
        description = json.loads(archive.read("traced.json"))
    for members, message in (
        ({"weights_pt": None}, "no weights file"),
        ({"weights_pt": b"no tensors"}, "cannot be read as a traced file"),
        ({"traced_json": b"{"}, "the description in the traced file is damaged"),
        ({"traced_json": b'{"format": 0}'}, "is not of format 1"),
        ({"traced_json": json.dumps({**description, "more": 1}).encode()}, "is damaged"),
        ({"traced_json": json.dumps({**description, "in_tree": "x"}).encode()}, "is damaged"),
    ):
        changed(good, bad, **members)
        with pytest.raises(LoadError, match=message):
            tracing.load(bad)


def test_a_file_that_lacks_a_state_says_so(tmp_path: Path) -> None:
    zeros = torch.zeros(2)
    traced = tracing.trace(lambda x, a: (a + x, a + x), (zeros, zeros), input_output_aliases={1: 1}, backend="eager")
    assert traced.state is not None
    traced.state.initial = ()
    traced.save(tmp_path / "traced")

    with pytest.raises(LoadError, match=r"lacks the tensors state\.pt/0"):
        tracing.load(tmp_path / "traced")


def test_a_file_that_lacks_a_tensor_says_which(tmp_path: Path) -> None:
    """Otherwise an engine would read missing memory."""
    traced = tracing.trace(Conv(), torch.rand(1, 1, 3, 3), backend="eager")
    traced.store = {key: value for key, value in traced.store.items() if key != "weights/conv.bias"}
    traced.save(tmp_path / "traced")

    with pytest.raises(LoadError, match=r"lacks the tensors weights/conv\.bias"):
        tracing.load(tmp_path / "traced")

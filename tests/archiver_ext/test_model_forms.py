"""Models traced for one request alone: packaged by each engine, served by TorchServe's worker."""

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from archiving import archive, write_source
from worker import WorkerResponse, answered

from torchserve_neuron_lstm.config.manifest import read_manifest

from .own_model.own_models import HEAD

SUBSAMPLED = """
class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.frames = nn.Conv1d(3, 8, 3, stride=2, padding=1)
        self.gru = nn.GRU(8, 8, batch_first=True, bidirectional=True)
        self.score = nn.Linear(16, 1)
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        y, _ = self.gru(torch.relu(self.frames(x.transpose(1, 2))).transpose(1, 2))
        weights = torch.softmax(self.score(y), 1)
        return {"frames": self.out(y), "summary": (weights * y).sum(1)}
"""
WITHOUT_PADDING = """
class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(3, 8, 3)
        self.second = nn.Conv1d(8, 8, 3)
        self.gru = nn.GRU(8, 4, batch_first=True)

    def forward(self, x):
        y = torch.tanh(self.second(torch.tanh(self.first(x.transpose(1, 2)))))
        return self.gru(y.transpose(1, 2))[0]
"""
COUNTING = """
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 5, padding_idx=0)
        self.gru = nn.GRU(5, 6, batch_first=True)

    def forward(self, ids):
        lengths = (ids != 0).sum(dim=1).tolist()
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        return self.gru(packed)[1][0]
"""
OWN_CELL = """
class Minimal(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = nn.Linear(3 + 6, 12)
        self.out = nn.Linear(6, 4)

    def forward(self, x):
        state, states = x.new_zeros(x.size(0), 6), []
        for t in range(x.size(1)):
            keep, new = self.gates(torch.cat([x[:, t], state], 1)).chunk(2, 1)
            state = torch.sigmoid(keep) * state + torch.tanh(new)
            states.append(self.out(state))
        return torch.stack(states, 1)
"""
BLOCK = """
inputs: {x: {dtype: float32, shape: [batch, time, 3]}}
buckets: {batch: [4], length: [8, 16]}
backend: %s
"""
LENGTHS = (16, 1, 9, 4)
LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("onnxruntime", "inductor", "openvino", "eager")]


def packaged(folder: Path, backend: str, code: str = SUBSAMPLED) -> tuple[Path, torch.nn.Module]:
    done, model = archived(folder, code, BLOCK % backend)
    assert done.returncode == 0, done.stdout
    return folder / "m", model


def archived(folder: Path, code: str, block: str) -> tuple[subprocess.CompletedProcess[str], torch.nn.Module]:
    (folder / "given.py").write_text(HEAD + code)
    source = write_source(folder / "source", folder / "given.py", block)
    return archive(source, "m", folder, ["--archive-format", "no-archive"]), source.model


@pytest.mark.ci
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["native", *LONG])
def test_a_model_that_subsamples_time_answers_at_its_own_length(backend: str, tmp_path: Path) -> None:
    folder, model = packaged(tmp_path, backend)
    rng = torch.Generator().manual_seed(1)
    requests = [torch.randn(length, 3, generator=rng) for length in LENGTHS]

    responses = answered(folder, [x.tolist() for x in requests])

    assert [spec.shape for spec in read_manifest(folder).outputs] == [("batch", "(time - 1)//2 + 1", 4), ("batch", 16)]
    for x, response in zip(requests, responses, strict=True):
        assert response.status == 200, response.body
        answer = json.loads(response.body)
        with torch.no_grad():
            alone = model(x[None])
        for name, tensor in alone.items():
            torch.testing.assert_close(torch.tensor(answer[name]), tensor[0], atol=1e-5, rtol=1e-5)


@pytest.mark.ci
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["native", pytest.param("onnxruntime", marks=pytest.mark.long)])
def test_a_request_shorter_than_the_model_takes_gets_its_own_error(backend: str, tmp_path: Path) -> None:
    folder, model = packaged(tmp_path, backend, WITHOUT_PADDING)
    requests = [torch.randn(length, 3, generator=torch.Generator().manual_seed(length)) for length in (16, 4, 5, 9)]

    responses = answered(folder, [x.tolist() for x in requests])

    assert read_manifest(folder).shortest == 5
    assert [response.status for response in responses] == [200, 422, 200, 200]
    refusal = json.loads(responses[1].body)
    assert refusal["type"] == "LengthNotAccepted"
    assert refusal["message"] == "a sequence of 4 timesteps is not accepted: the model takes 5 or more"
    accepted = [responses[0], *responses[2:]]
    assert_answers(accepted, [requests[0], *requests[2:]], lambda x: model(x[None])[0])


def assert_answers(
    responses: Sequence[WorkerResponse], requests: Sequence[torch.Tensor], alone: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    for x, response in zip(requests, responses, strict=True):
        assert response.status == 200, response.body
        with torch.no_grad():
            torch.testing.assert_close(torch.tensor(json.loads(response.body)), alone(x), atol=1e-5, rtol=1e-5)


@pytest.mark.ci
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["native", pytest.param("inductor", marks=pytest.mark.long)])
def test_a_cell_of_ones_own_is_served(backend: str, tmp_path: Path) -> None:
    folder, model = packaged(tmp_path, backend, OWN_CELL)
    requests = [torch.randn(length, 3, generator=torch.Generator().manual_seed(length)) for length in LENGTHS]
    assert_answers(answered(folder, [x.tolist() for x in requests]), requests, lambda x: model(x[None])[0])


@pytest.mark.long
def test_a_cell_of_ones_own_is_refused_where_it_cannot_be_compiled(tmp_path: Path) -> None:
    done, _ = archived(tmp_path, OWN_CELL, BLOCK % "onnxruntime")

    assert done.returncode != 0
    assert "a loop over timesteps with a cell that is not LSTM, GRU or RNN cannot be written as ONNX" in done.stdout
    assert not (tmp_path / "m").exists()


@pytest.mark.long
def test_values_outside_of_a_range_that_decides_a_branch_are_refused(tmp_path: Path) -> None:
    """The id of padding within a sequence would shorten it in eager mode; the program has no such branch."""
    block = BLOCK.replace(
        "x: {dtype: float32, shape: [batch, time, 3]}", "ids: {dtype: int64, shape: [batch, time], range: [1, 8]}"
    )
    done, model = archived(tmp_path, COUNTING, block % "native")
    assert done.returncode == 0, done.stdout
    bodies = [[1, 2, 8], [3, 0, 4], [5]]

    responses = answered(tmp_path / "m", bodies)

    assert [response.status for response in responses] == [200, 400, 200]
    assert (
        "value 0 at [1] is outside of the range that the model takes (1 to 8)"
        in json.loads(responses[1].body)["message"]
    )
    accepted = [torch.tensor(ids) for ids in (bodies[0], bodies[2])]
    assert_answers([responses[0], responses[2]], accepted, lambda ids: model(ids[None])[0])

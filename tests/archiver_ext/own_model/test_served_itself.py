"""Models that are not lowered: packaged by the archiver, and served by TorchServe's worker as eager mode answers."""

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import warm_archiver
from archiving import ARCHIVER, FRONTEND, Source, archive, imported
from worker import answered

from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.config.manifest import Manifest, read_manifest
from torchserve_neuron_lstm.inference.open_archive import OpenArchive, open_archive

from . import own_models

BLOCK = """\
  model: {class: Model}
  inputs: {x: {dtype: float32, shape: [batch, time, 3]}}
  buckets: {batch: [1, 4], length: [4, 9]}
"""
ONLY_TORCH = f"{BLOCK}  backend: eager\n"
"""Without the native engine's kernels, so that answers are those of eager mode in every bit."""
LENGTHS = (9, 1, 4, 4, 7)
FAST = ("greedy decoder", "state")
_NUMBER = itertools.count()


def fresh_model(folder: Path) -> torch.nn.Module:
    """The user's model of a new import of its file, so that it was never called."""
    module = imported(f"_own_model_{next(_NUMBER)}", folder / "model.py")
    torch.manual_seed(0)
    model: torch.nn.Module = module.Model().eval()
    if (folder / "weights.pt").is_file():
        model.load_state_dict(torch.load(folder / "weights.pt"))
    return model


def written(folder: Path, code: str, block: str = BLOCK) -> Source:
    source = folder / "source"
    source.mkdir()
    (source / "model.py").write_text(own_models.HEAD + code)
    model = fresh_model(source)
    torch.save(model.state_dict(), source / "weights.pt")
    (source / "model-config.yaml").write_text(f"{FRONTEND}neuron_lstm:\n{block}")
    return Source(source, model)


def archived(
    folder: Path, code: str, block: str = BLOCK, extra: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Package a model's code, with the files of the folder `extra`."""
    more = [] if extra is None else ["--extra-files", str(extra)]
    return archive(written(folder, code, block), "m", folder, ["--archive-format", "no-archive", *more])


def described(folder: Path) -> Manifest:
    manifest = read_manifest(folder / "m")
    assert manifest.model is not None
    return manifest


def requests() -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(3)
    scales = (1.0, 5.0, 0.01)
    return [torch.randn(length, 3, generator=rng) * scales[i % 3] for i, length in enumerate(LENGTHS)]


def numbers(value: Any) -> Iterator[float]:
    """All numbers of nested lists, dicts and tensors, in their order."""
    if isinstance(value, torch.Tensor):
        value = (value.to_dense() if value.is_sparse else value).tolist()
    if hasattr(value, "__array__"):
        value = value.tolist()
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from numbers(item)
    else:
        yield float(value)


def eager_numbers(folder: Path, x: torch.Tensor) -> list[float]:
    with torch.no_grad():
        return list(numbers(fresh_model(folder / "source")(x[None].clone())))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.ci) for name in own_models.CODE_OF]
)
def test_the_model_itself_answers_as_eager_mode_does_each_request_alone(name: str, tmp_path: Path) -> None:
    done = archived(tmp_path, own_models.CODE_OF[name], ONLY_TORCH)
    assert done.returncode == 0, done.stdout
    assert "Model is served by its own code in eager mode, each request alone" in done.stdout

    responses = answered(tmp_path / "m", [x.tolist() for x in requests()])

    for x, response in zip(requests(), responses, strict=True):
        assert response.status == 200, response.body
        found = [torch.tensor(number, dtype=torch.float32).item() for number in numbers(json.loads(response.body))]
        assert found == [torch.tensor(number, dtype=torch.float32).item() for number in eager_numbers(tmp_path, x)]


def test_a_model_of_one_request_answers_with_its_own_dimensions(tmp_path: Path) -> None:
    code = "class Model(nn.Module):\n    def forward(self, x): return (x.max(0)[0], x) if x.sum() > 0 else (x[0], x)\n"
    done = archived(tmp_path, code, ONLY_TORCH.replace("class: Model", "class: Model, batched: false"))
    assert "Model is served by its own code" in done.stdout

    with open_archive(tmp_path / "m") as model:
        (answer,) = model.predict([[[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]])
    assert answer == {"0": [3.0, 2.0, 3.0], "1": [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]}


def test_a_call_finds_the_modules_of_its_archive_beside_others_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import sys\nWORD = 1.0\n"
        "class Model(nn.Module):\n"
        "    def forward(self, x): return -x if x.sum() > 1e9 else x + getattr(sys.modules[__name__], 'WORD')\n"
    )
    done = archived(tmp_path, code, ONLY_TORCH)
    assert "Model is served by its own code" in done.stdout

    other = ModuleType("model")
    other.__dict__["WORD"] = 100.0
    with open_archive(tmp_path / "m") as model:
        monkeypatch.setitem(sys.modules, "model", other)
        assert model.predict([[[1.0, 2.0, 3.0]]]) == [[[2.0, 3.0, 4.0]]]
        assert sys.modules["model"] is other


def test_archives_are_opened_while_the_model_of_another_one_is_made_anew(tmp_path: Path) -> None:
    """Both take the modules and the turn of the user's code: in one order, or they wait for each other."""
    assert archived(tmp_path, own_models.NOT_PUT_BACK, ONLY_TORCH).returncode == 0
    x, ended = requests()[0].tolist(), threading.Event()

    def use(model: OpenArchive) -> list[Any]:
        found = model.predict([x])
        while not ended.is_set():
            assert model.predict([x]) == found
        return found

    def open_often(folder: Path) -> None:
        for _ in range(20):
            open_archive(folder).close()

    with open_archive(tmp_path / "m") as model, ThreadPoolExecutor(2) as threads:
        using = threads.submit(use, model)
        opening = threads.submit(open_often, tmp_path / "m")
        try:
            opening.result(100)
        finally:
            ended.set()
        assert [*numbers(using.result(60))] == pytest.approx(eager_numbers(tmp_path, requests()[0]))


@pytest.mark.timeout(300)
def test_an_archive_of_the_model_itself_says_so_everywhere(tmp_path: Path) -> None:
    done = archived(tmp_path, own_models.STATE)
    assert done.returncode == 0, done.stdout
    first = done.stdout.splitlines()[0]
    assert first.startswith("Model is served by its own code in eager mode, each request alone")
    assert "(at model.py:20: self.seen += 1)" in first
    assert "requests change self.last, self.hidden, model.CALLS.count, self.seen, self.steps" in done.stdout

    manifest = described(tmp_path)
    x = requests()[0]
    with open_archive(tmp_path / "m", threads=1) as model:
        description = model.describe()["own_model"]
        answers = [model.predict([x.numpy()]) for _ in range(2)]
        together = model.predict([one.numpy() for one in requests()])
    command = [str(ARCHIVER.with_name("neuron-lstm")), "inspect", str(tmp_path / "m")]
    shown = warm_archiver.run(command, tmp_path, os.environ)

    assert "not lowered Model of model.py answers by its own code, each request alone: the model reads" in shown.stdout
    assert manifest.variants == ()
    assert manifest.grid.batches == (1,)
    assert isinstance(description, dict)
    assert description["name"] == "Model"
    assert "self.seen += 1" in description["reason"]
    assert list(numbers(answers[0])) == list(numbers(answers[1])) == eager_numbers(tmp_path, x)
    for one, answer in zip(requests(), together, strict=True):
        assert list(numbers(answer)) == eager_numbers(tmp_path, one)


@pytest.mark.ci
@pytest.mark.skipif(get_backend("native").unavailable() is not None, reason="no compiler")
@pytest.mark.timeout(300)
def test_recurrent_layers_are_computed_by_the_engine_native_where_the_yaml_names_it(tmp_path: Path) -> None:
    block = (
        "  inputs: {x: {dtype: float32, shape: [batch, time, 64]}}\n  buckets: {batch: [1], length: [64]}\n"
        "  backend: native\n"
    )
    code = own_models.BRANCH_ON_VALUES.replace("GRU(3, 4", "GRU(64, 128")

    done = archived(tmp_path, code, block)

    assert done.returncode == 0, done.stdout
    assert "as the native engine computes recurrent layers" in done.stdout
    assert described(tmp_path).model is not None
    assert 0 < described(tmp_path).checks[0].max_error < 1e-5
    x = torch.randn(50, 64) * 2
    (response,) = answered(tmp_path / "m", [x.tolist()])
    found, expected = json.loads(response.body), eager_numbers(tmp_path, x)
    torch.testing.assert_close(torch.tensor(list(numbers(found))), torch.tensor(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_a_random_model_is_served_with_a_word_in_the_report(tmp_path: Path) -> None:
    done = archived(tmp_path, own_models.RANDOM)

    assert done.returncode == 0, done.stdout
    assert "it draws random numbers: equal requests have different answers" in done.stdout
    first, second = answered(tmp_path / "m", [requests()[0].tolist()] * 2)
    assert first.status == second.status == 200
    assert first.body != second.body


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            own_models.FAILING,
            "error: Model fails in eager mode on one request of 1 timesteps, a batch of 1 (at model.py:13: return ",
        ),
        pytest.param(
            own_models.HIDDEN_STATE, "It keeps state between calls that cannot be put back", marks=pytest.mark.ci
        ),
        pytest.param(own_models.RANDOM_CONSTRUCTOR, "its constructor draws random numbers", marks=pytest.mark.ci),
    ],
    ids=["fails", "hidden state", "random constructor"],
)
def test_a_model_that_is_no_function_of_its_request_is_refused(code: str, said: str, tmp_path: Path) -> None:
    done = archived(tmp_path, code)

    assert done.returncode == 1
    assert said in done.stdout
    assert not (tmp_path / "m").exists()


@pytest.mark.ci
@pytest.mark.parametrize("line", ["lowering: required", "streaming: {}"])
def test_what_needs_a_lowered_model_refuses_in_place_of_serving_the_model_itself(line: str, tmp_path: Path) -> None:
    done = archived(tmp_path, own_models.BRANCH_ON_VALUES, f"{BLOCK}  {line}\n")

    assert done.returncode == 1
    assert "control flow of Model.forward depend on the values of its inputs" in done.stdout


@pytest.mark.timeout(300)
def test_lowering_off_serves_a_model_itself_with_all_its_arguments(tmp_path: Path) -> None:
    block = """\
  model: {class: Model, method: score, args: {sizes: [3, 2]}, forward: {scale: 2.0}}
  inputs: {pair.0: {dtype: float32, shape: [batch, time, 3]}, pair.1: {dtype: float32, shape: [batch, 2]}}
  lengths: {names: [n], type: list}
  mask: {name: mask, dtype: int64, true_for: padding}
  outputs: [scores]
  buckets: {batch: [2], length: [6]}
  lowering: off
"""
    code = """
from parts import helper


class Model(nn.Module):
    def __init__(self, sizes: tuple[int, int] = (3, 2)):
        super().__init__()
        assert isinstance(sizes, tuple)
        self.out = nn.Linear(*sizes)
        self.register_buffer("bias", torch.tensor([1.0, 2.0]), persistent=False)

    def score(self, pair, n, mask, scale):
        from later import doubled

        assert set(n) == {pair[0].shape[1]} and mask.shape == (1, n[0]) and not mask.any()
        x, y = pair[0][: len(n)], pair[1][: len(n), None]  # as packing takes a row for each length
        return doubled(helper(self.out(x) + y + self.bias)) * scale
"""
    source = tmp_path / "source"
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "parts.py").write_text("def helper(x):\n    return x.tanh()\n")
    (tmp_path / "extra" / "later.py").write_text("def doubled(x):\n    return x + x\n")
    source.mkdir()
    (source / "model.py").write_text(own_models.HEAD + code)
    torch.manual_seed(0)
    out = torch.nn.Linear(3, 2)
    torch.save({"out.weight": out.weight.detach(), "out.bias": out.bias.detach()}, source / "weights.pt")
    (source / "model-config.yaml").write_text(f"{FRONTEND}neuron_lstm:\n{block}")
    more = ["--extra-files", f"{tmp_path}/extra", "--archive-format", "no-archive"]

    done = archive(Source(source, out), "m", tmp_path, more)

    assert done.returncode == 0, done.stdout
    assert "because of `lowering: off`" in done.stdout
    x, y = torch.randn(5, 3), torch.randn(2)
    with torch.no_grad():
        expected = torch.tanh(out(x[None]) + y[None][:, None] + torch.tensor([1.0, 2.0])) * 2 * 2.0
    (response,) = answered(tmp_path / "m", [{"pair.0": x.tolist(), "pair.1": y.tolist()}])
    assert response.status == 200, response.body
    assert torch.equal(torch.tensor(json.loads(response.body)), expected[0])
    with open_archive(tmp_path / "m") as model:
        (answer,) = model.predict([{"pair.0": x.numpy(), "pair.1": y.numpy()}])
    assert torch.equal(torch.tensor(answer), expected[0])


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_a_loop_that_changes_at_a_step_that_no_trace_shows_is_answered_by_its_own_code(tmp_path: Path) -> None:
    code = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], 4)
        for t in range(x.shape[1]):
            if t % 20 == 19:
                h = torch.zeros_like(h)
            h = self.cell(x[:, t], h)
        return h
"""
    block = BLOCK.replace("[4, 9]", "[4, 24]")
    done = archived(tmp_path, code, block)
    assert done.returncode == 0, done.stdout
    assert "does something else at 20 timesteps than at 12 (at model.py:" in done.stdout

    x = [torch.randn(length, 3) for length in (24, 19, 20, 3)]
    with open_archive(tmp_path / "m") as served:
        answers = served.predict([item.numpy() for item in x])

    for item, answer in zip(x, answers, strict=True):
        assert list(numbers(answer)) == pytest.approx(eager_numbers(tmp_path, item), abs=1e-6)

    (tmp_path / "required").mkdir()
    refused = archived(tmp_path / "required", code, block + "  lowering: required\n")
    assert refused.returncode == 1
    assert "does something else at 20 timesteps" in refused.stdout


MULTIPLES = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 3, batch_first=True)

    def forward(self, x):
        pairs = x.unfold(1, 4, 4).mean(3).repeat_interleave(4, 1)
        return self.rnn(x + pairs)[0] if x.abs().max() < 1e9 else x
"""


@pytest.mark.ci
def test_a_model_that_takes_some_lengths_only_is_served_for_these(tmp_path: Path) -> None:
    result = archived(tmp_path, MULTIPLES, ONLY_TORCH.replace("[4, 9]", "[4, 12]"))

    assert result.returncode == 0, result.stderr
    assert (
        "of 4, 5, 8, 11, 12 timesteps, it takes not 5, 11: Model fails in eager mode on one request of 5"
        in result.stdout
    )
    model, x = fresh_model(tmp_path / "source"), torch.randn(8, 3)
    with open_archive(tmp_path / "m") as served:
        assert torch.equal(torch.tensor(served.predict([x.numpy()])[0]), model(x[None])[0])

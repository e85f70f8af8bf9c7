import inspect
from pathlib import Path

import pytest
import torch
from torch import nn

from torchserve_neuron_lstm.archiver_ext.checkpoint import load_state_dict
from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.model_class import importable
from torchserve_neuron_lstm.archiver_ext.user_model import build_model, serve_method
from torchserve_neuron_lstm.config.schema import ModelArguments
from torchserve_neuron_lstm.lowering.exporter.export import forward_name, replaced_forward

from .model_files import ONE, write


def saved(folder: Path, size: int = 3) -> Path:
    path = folder / "weights.pt"
    torch.save(torch.nn.ModuleDict({"linear": torch.nn.Linear(size, 2)}).state_dict(), path)
    return path


def load_model(model_file: Path, serialized: Path | None, config: ModelArguments) -> nn.Module:
    model = build_model(model_file, config)
    load_state_dict(model, serialized)
    return model


def refusal(folder: Path, model_file: Path, serialized: Path | None = None, **args: object) -> str:
    with importable(folder), pytest.raises(PackagingError) as refused:
        load_model(model_file, serialized, ModelArguments(args=args))
    return str(refused.value)


def test_wrong_arguments_are_answered_with_the_signature(tmp_path: Path) -> None:
    file = write(tmp_path, ONE)
    assert "the class takes One(size, deep=False)" in refusal(tmp_path, file)
    assert "'width'" in refusal(tmp_path, file, None, size=3, width=1)


def test_lists_become_tuples_where_the_class_asks_for_them(tmp_path: Path) -> None:
    text = """
import torch
from typing import Optional, Tuple
class Sized(torch.nn.Module):
    def __init__(self, a: tuple[int, int], b: Optional[Tuple[int, ...]] = None, c=(1, 2), d=None, e: list = None):
        super().__init__()
        self.given = [a, b, c, d, e]
"""
    with importable(tmp_path):
        model = load_model(write(tmp_path, text), None, ModelArguments(args={name: [3, 4] for name in "abcde"}))
    assert model.given == [(3, 4), (3, 4), (3, 4), [3, 4], [3, 4]]


def test_a_train_method_that_returns_nothing_is_no_problem(tmp_path: Path) -> None:
    """Many models override it to freeze a layer."""
    text = f"{ONE}\n    def train(self, mode=True):\n        super().train(mode)\n"
    with importable(tmp_path):
        assert not load_model(write(tmp_path, text), saved(tmp_path), ModelArguments(args={"size": 3})).training


def test_a_failing_constructor_is_shown_as_called_and_may_not_end_python(tmp_path: Path) -> None:
    assert "One(size='x') fails: TypeError" in refusal(tmp_path, write(tmp_path, ONE), None, size="x")
    text = ONE.replace("super().__init__()", "raise SystemExit(0)")

    assert "One(size=3) fails: SystemExit: 0" in refusal(tmp_path, write(tmp_path, text), saved(tmp_path), size=3)


class Scored(nn.Module):
    """A model with a method that calls the model, and one that calls forward()."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.rate = 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.linear(x)
        return scores

    def infer(self, frames: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return torch.softmax(scale * self(frames), -1)

    def through_forward(self, frames: torch.Tensor) -> torch.Tensor:
        return -self.forward(frames)


@pytest.mark.parametrize("name", ["infer", "through_forward"])
def test_a_call_of_the_model_runs_the_method(name: str) -> None:
    """The method may call the model: that is its own forward() then, as often as it likes."""
    model, x = Scored().eval(), torch.randn(4, 3)
    alone = getattr(model, name)(x)
    serve_method(model, name)

    assert torch.equal(model(frames=x), alone)
    assert torch.equal(model(x), alone)
    assert str(inspect.signature(model.forward)) == str(inspect.signature(getattr(Scored(), name)))
    assert forward_name(model) == f"Scored.{name}"


def test_a_replaced_forward_may_call_the_method() -> None:
    """Tracing replaces forward() by a function of its own, which calls the one before."""
    model, x = Scored().eval(), torch.randn(4, 3)
    alone = model.infer(x)
    serve_method(model, "infer")
    served = model.forward
    with replaced_forward(model, lambda one: (served(one),)):
        assert torch.equal(model(x)[0], alone)
        assert torch.equal(model(x)[0], alone)
    assert torch.equal(model(x), alone)


def test_forward_itself_and_a_method_that_fails_leave_the_model_as_it_was() -> None:
    model = Scored()
    serve_method(model, "forward")
    assert "forward" not in vars(model)
    serve_method(model, "infer")
    with pytest.raises(RuntimeError):
        model(torch.randn(4, 5))

    assert torch.allclose(model(torch.randn(4, 3)).sum(-1), torch.ones(4))


class OneSentence(nn.Module):
    """A tagger of one sentence, with its length as a number, which calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 2)

    def forward(self, x: torch.Tensor, length: torch.Tensor) -> dict[str, torch.Tensor]:
        y, _ = self.lstm(x.view(len(x), 1, -1))
        return {"tags": y.view(len(x), -1), "length": length}

    def twice(self, x: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        tags: torch.Tensor = self(x, length)["tags"]
        return 2 * tags


def test_a_model_of_one_request_takes_a_batch_of_one() -> None:
    """Also where the method calls the model, which has no batch dimension there either."""
    x, length = torch.randn(4, 3), torch.tensor(4)
    model = OneSentence().eval()
    alone = model(x, length)
    serve_method(model, "forward", batched=False)
    answer = model(x[None], length=length[None])

    assert torch.equal(answer["tags"], alone["tags"][None])
    assert torch.equal(answer["length"], torch.tensor([4]))
    other = OneSentence().eval()
    other.load_state_dict(model.state_dict())
    serve_method(other, "twice", batched=False)
    assert torch.equal(other(x[None], length[None]), 2 * alone["tags"][None])


@pytest.mark.parametrize("name", ["inferr", "rate", "linear"])
def test_a_name_that_is_no_method_is_refused(name: str) -> None:
    with pytest.raises(PackagingError, match=f"Scored has no method {name}: it has forward, infer, through_forward"):
        serve_method(Scored(), name)

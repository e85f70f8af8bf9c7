"""The user's model from its files, or the reason of a refusal with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.model_file import importable
from torchserve_neuron_lstm.archiver_ext.user_model import load_model
from torchserve_neuron_lstm.config.schema import ModelArguments

from .model_files import ONE, write


def saved(folder: Path, size: int = 3) -> Path:
    """Weights of `One`."""
    path = folder / "weights.pt"
    torch.save(torch.nn.ModuleDict({"linear": torch.nn.Linear(size, 2)}).state_dict(), path)
    return path


def refusal(folder: Path, model_file: Path, serialized: Path | None = None, **args: object) -> str:
    """The text of the refusal."""
    with importable(folder), pytest.raises(PackagingError) as refused:
        load_model(model_file, serialized, ModelArguments(args=args))
    return str(refused.value)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
def test_a_model_has_the_weights_of_its_file_and_is_in_eval_mode(tmp_path: Path, suffix: str) -> None:
    """Each format of a state dict fills the model that the arguments make."""
    state = torch.nn.ModuleDict({"linear": torch.nn.Linear(3, 2)}).state_dict()
    path = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    with importable(tmp_path):
        model = load_model(write(tmp_path, ONE), path, ModelArguments(args={"size": 3}))

    assert not model.training
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_wrong_arguments_are_answered_with_the_signature(tmp_path: Path) -> None:
    """Unknown and missing arguments are both named."""
    file = write(tmp_path, ONE)
    assert "the class takes One(size, deep=False)" in refusal(tmp_path, file)
    assert "'width'" in refusal(tmp_path, file, None, size=3, width=1)


def test_a_failing_constructor_is_shown_as_called(tmp_path: Path) -> None:
    """The message has the call, and the error that it raised."""
    assert "One(size='x') fails: TypeError" in refusal(tmp_path, write(tmp_path, ONE), None, size="x")


def test_lists_become_tuples_where_the_class_asks_for_them(tmp_path: Path) -> None:
    """An annotation or a default tells it; other lists stay lists."""
    text = """
import torch
from typing import Optional, Tuple
class Sized(torch.nn.Module):
    def __init__(self, a: tuple[int, int], b: Optional[Tuple[int, ...]] = None, c=(1, 2), d=None, e: list = None):
        super().__init__()
        self.given = [a, b, c, d, e]
"""
    with importable(tmp_path):
        arguments = ModelArguments(args={name: [3, 4] for name in "abcde"})
        model = load_model(write(tmp_path, text), None, arguments)
    assert model.given == [(3, 4), (3, 4), (3, 4), [3, 4], [3, 4]]


def test_a_train_method_that_returns_nothing_is_no_problem(tmp_path: Path) -> None:
    """Many models override it to freeze a layer."""
    text = f"{ONE}\n    def train(self, mode=True):\n        super().train(mode)\n"
    with importable(tmp_path):
        assert not load_model(write(tmp_path, text), saved(tmp_path), ModelArguments(args={"size": 3})).training


def test_a_constructor_that_ends_python_is_refused(tmp_path: Path) -> None:
    """The call is named."""
    text = ONE.replace("super().__init__()", "raise SystemExit(0)")

    assert "One(size=3) fails: SystemExit: 0" in refusal(tmp_path, write(tmp_path, text), saved(tmp_path), size=3)

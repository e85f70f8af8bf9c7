from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchserve_neuron_lstm.archiver_ext.commands.infer_arguments import infer_arguments, required_arguments
from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.handlers.runtime.constructor_arguments import Options


class Sized(nn.Module):
    """A tagger whose sizes are all required, and whose form has defaults."""

    def __init__(
        self, words: int, width: Any, hidden: Any, tags: int, layers: int = 1, both: bool = False, rate: float = 0.1
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        self.lstm = nn.LSTM(width, hidden, layers, bidirectional=both, dropout=rate * (layers > 1))
        nn.init.orthogonal_(next(self.lstm.parameters()))
        self.out = nn.Linear(hidden * (1 + both), tags)


class Headed(nn.Module):
    """Attention, whose number of heads no weight tells, and a name."""

    def __init__(self, size: int, heads: int, name: str = "headed") -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(size, heads)


class Named(nn.Module):
    def __init__(self, size: int, kind: str) -> None:
        super().__init__()
        self.layer = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](size, 4)


def saved(folder: Path, model: nn.Module) -> Path:
    """A checkpoint of data parallel training, with the state of an optimizer before it."""
    state = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    path = folder / "checkpoint.pt"
    torch.save({"optimizer": {0: {"step": torch.ones(())}}, "state_dict": state}, path)
    return path


sizes = st.integers(1, 40)


@pytest.mark.ci
@settings(max_examples=8)
@given(words=sizes, width=sizes, hidden=st.integers(2, 40), tags=sizes, layers=st.integers(1, 3), both=st.booleans())
def test_every_size_is_found(tmp_path_factory: pytest.TempPathFactory, **sizes: Any) -> None:
    file = saved(tmp_path_factory.mktemp("w"), Sized(**sizes))
    defaults = {"layers": 1, "both": False}
    assert {**defaults, **infer_arguments(Sized, {}, file)} == sizes


def test_given_arguments_stay(tmp_path: Path) -> None:
    assert infer_arguments(Headed, {"heads": 3}, saved(tmp_path, Headed(12, 3))) == {"heads": 3, "size": 12}


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        (
            Headed(12, 3),
            {},
            "Headed needs heads, which the weights of checkpoint.pt do not determine: give --args heads=VALUE",
        ),
        (Named(3, "gru"), {"size": 3}, "--args kind=VALUE; the class takes Named("),
        (Sized(9, 3, 4, 5), {"words": 8}, "give --args width=VALUE hidden=VALUE tags=VALUE"),
    ],
)
def test_nothing_is_made_up(tmp_path: Path, model: nn.Module, given: dict[str, Any], said: str) -> None:
    with pytest.raises(PackagingError) as refused:
        infer_arguments(type(model), given, saved(tmp_path, model))
    assert said in str(refused.value)


class Configured(nn.Module):
    """A tagger that reads its sizes from two configuration objects."""

    def __init__(self, opt: Any, data: Any, tags: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(data.words, opt["width"])
        self.lstm = nn.LSTM(opt.width, opt.hidden, opt.layers)
        self.dropout = nn.Dropout(getattr(opt, "dropout", 0.1))
        self.out = nn.Linear(opt.hidden, tags)


def test_the_values_of_configuration_objects_are_found(tmp_path: Path) -> None:
    sizes = Options({"width": 6, "hidden": 20, "layers": 2})
    file = saved(tmp_path, Configured(sizes, Options({"words": 37}), 3))

    found = infer_arguments(Configured, {"opt.dropout": 0.2}, file)

    assert found == {"opt.dropout": 0.2, "opt.width": 6, "opt.hidden": 20, "opt.layers": 2, "data.words": 37, "tags": 3}


def test_values_of_configuration_objects_are_asked_for_by_name() -> None:
    needed = required_arguments(Configured, {"tags": 3, "opt.width": 6})

    assert sorted(needed) == ["data.words", "opt.hidden", "opt.layers"]

"""Weights of a file in the user's model, or the reason of a refusal with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.state_dict import load_state_dict


class One(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)


def refusal(serialized: Path | None) -> str:
    """The text of the refusal of a file for `One`."""
    with pytest.raises(PackagingError) as refused:
        load_state_dict(One(), serialized)
    return str(refused.value)


def test_a_model_without_weights_needs_no_file() -> None:
    """A model without parameters loads no weights."""
    assert load_state_dict(torch.nn.Tanh(), None) is None


def test_weights_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    """Missing and unexpected weights, and weights of other shapes, are listed together."""
    path = tmp_path / "weights.pt"
    torch.save({"linear.weight": torch.zeros(2, 4), "other": torch.zeros(1)}, path)
    text = refusal(path)

    assert "missing: linear.bias [2]" in text
    assert "not in the model: other [1]" in text
    assert "linear.weight: the model has [2, 3], the file [2, 4]" in text


def test_a_model_with_weights_needs_a_file() -> None:
    """The remedy is the call that writes one."""
    assert "torch.save(model.state_dict()" in refusal(None)


def test_a_pickled_module_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """Only tensors are unpickled."""
    path = tmp_path / "weights.pt"
    torch.save(torch.nn.Linear(3, 2), path)

    assert "torch.save(model.state_dict()" in refusal(path)


def test_a_torchscript_archive_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """A scripted module holds code beside tensors."""
    path = tmp_path / "weights.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(3, 2)), path)

    assert "state_dict()" in refusal(path)


def test_the_part_of_a_checkpoint_that_was_read_is_told(tmp_path: Path) -> None:
    """A plain state dict is not worth a sentence."""
    told: list[str] = []
    model, state = One(), One().state_dict()
    torch.save(state, tmp_path / "weights.pt")
    path = tmp_path / "checkpoint.pt"
    torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}, "epoch": 3}, path)
    load_state_dict(One(), tmp_path / "weights.pt", told.append)
    load_state_dict(model, path, told.append)

    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert told == ["checkpoint.pt['state_dict'] holds the weights; the prefix 'module.' of their names was left out"]

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from torchserve_neuron_lstm.archiver_ext.checkpoint import find_weights, load_state_dict, write_weights
from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.backends.safetensors_file import WeightsError
from torchserve_neuron_lstm.backends.weights import read_weights

MODEL = nn.LSTM(3, 4)
STATE = MODEL.state_dict()


def saved(folder: Path, content: Any, name: str = "checkpoint.pt") -> Path:
    torch.save(content, folder / name)
    return folder / name


def prefixed(prefix: str) -> dict[str, torch.Tensor]:
    return {prefix + name: tensor for name, tensor in STATE.items()}


def optimizer_state() -> dict[str, Any]:
    """The state of an optimizer after a step, which has a tensor for each weight."""
    model = nn.LSTM(3, 4)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 3))[0].sum().backward()
    optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize(
    ("content", "key", "prefix"),
    [
        (STATE, "", ""),
        (prefixed("module."), "", "module."),
        (prefixed("_orig_mod.module."), "", "_orig_mod.module."),
        ({"state_dict": STATE, "epoch": 3}, "['state_dict']", ""),
        ({"model": prefixed("model."), "optimizer": optimizer_state(), "loss": torch.ones(())}, "['model']", "model."),
        ({"model_state_dict": STATE, "optimizer_state_dict": optimizer_state()}, "['model_state_dict']", ""),
        ({"net": {"state_dict": prefixed("a.b_c.")}, "best": 0.5}, "['net']['state_dict']", "a.b_c."),
        ({0: STATE, "ema": {"decay": 0.9}}, "[0]", ""),
        ({"teacher": nn.LSTM(3, 8).state_dict(), "student": STATE}, "['student']", ""),
    ],
)
def test_weights_are_found_under_keys_and_prefixes(tmp_path: Path, content: Any, key: str, prefix: str) -> None:
    file = saved(tmp_path, content)
    found = find_weights(file, STATE)

    assert (found.key, found.prefix) == (key, prefix)
    assert found.is_whole_file == (content is STATE)
    assert list(found.weights) == list(STATE)
    assert all(torch.equal(found.weights[name], tensor) for name, tensor in STATE.items())
    assert key in found.describe(file)
    assert prefix in found.describe(file)


segments = st.text(st.characters(categories=["L", "Nd"], include_characters="_-"), min_size=1, max_size=5)


@given(st.lists(segments, max_size=3))
def test_every_prefix_is_left_out(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    prefix = "".join(f"{name}." for name in names)
    found = find_weights(saved(tmp_path_factory.mktemp("w"), prefixed(prefix)), STATE)

    assert found.prefix == prefix
    assert list(found.weights) == list(STATE)


def test_a_prefix_of_safetensors_is_left_out(tmp_path: Path) -> None:
    """Such a file has no keys."""
    save_file(prefixed("module."), tmp_path / "w.safetensors")
    assert find_weights(tmp_path / "w.safetensors", STATE).prefix == "module."


def test_weights_that_fit_twice_are_refused_with_both_keys(tmp_path: Path) -> None:
    file = saved(tmp_path, {"state_dict": STATE, "ema": {"model": prefixed("module.")}})
    with pytest.raises(PackagingError) as refused:
        find_weights(file, STATE)

    assert "fit 2 times: ['state_dict'] and ['ema']['model']" in str(refused.value)
    assert "torch.save(torch.load('checkpoint.pt')['state_dict'], 'weights.pt')" in str(refused.value)


def test_dicts_that_are_shared_many_times_are_read_once(tmp_path: Path) -> None:
    content: Any = {"weight": torch.ones(2)}
    for _ in range(4):
        content = {str(number): content for number in range(60)}
    torch.save(content, tmp_path / "weights.pt")

    found = find_weights(tmp_path / "weights.pt", {"weight": torch.zeros(2)})
    assert found.key == "['0']['0']['0']['0']"


def test_the_nearest_weights_are_returned_if_none_fit(tmp_path: Path) -> None:
    wrong = {"state_dict": {**prefixed("model."), "loss.weight": torch.ones(1)}, "other": {"a": torch.ones(1)}}
    found = find_weights(saved(tmp_path, wrong), STATE)

    assert found.key == "['state_dict']"
    assert set(found.weights) == {*STATE, "loss.weight"}


def test_names_without_the_prefix_of_the_others_are_no_weights_of_the_model(tmp_path: Path) -> None:
    names = list(STATE)
    mixed = {name if name == names[0] else f"module.{name}": tensor for name, tensor in STATE.items()}
    assert set(find_weights(saved(tmp_path, mixed), STATE).weights) == set(mixed)


def test_objects_of_other_classes_are_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="more than tensors"):
        find_weights(saved(tmp_path, {"state_dict": STATE, "model": MODEL}), STATE)


def test_an_empty_file_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").touch()
    with pytest.raises(WeightsError, match=r"weights\.pt is empty: save the weights again"):
        find_weights(tmp_path / "weights.pt", STATE)


@pytest.mark.parametrize("content", [[STATE], {"epoch": 3}, {"a": {"b": 1.0}}, torch.ones(3)])
def test_a_file_without_weights_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(WeightsError, match=r"save torch.save\(model.state_dict|Save the model's alone"):
        find_weights(saved(tmp_path, content), STATE)


@pytest.mark.parametrize(("odd", "kind"), [(lambda t: t.to_sparse(), "sparse_coo"), (lambda t: t.to("meta"), "meta")])
def test_tensors_without_numbers_in_a_row_are_refused(
    tmp_path: Path, odd: Callable[[torch.Tensor], torch.Tensor], kind: str
) -> None:
    content = {**STATE, "weight_hh_l0": odd(STATE["weight_hh_l0"])}
    with pytest.raises(PackagingError, match=rf"weight_hh_l0 \({kind}\).*Save dense tensors"):
        find_weights(saved(tmp_path, content), STATE)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_and_pipes_are_refused(tmp_path: Path) -> None:
    content = {**STATE, "weight_hh_l0": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])}
    with pytest.raises(PackagingError, match="nested tensors, save their parts alone: weight_hh_l0"):
        find_weights(saved(tmp_path, content), STATE)
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(WeightsError, match="there is no weights file"):
        find_weights(tmp_path / "pipe.pt", STATE)


def test_a_damaged_checkpoint_is_called_so(tmp_path: Path) -> None:
    """The end of one is that of a zip, and the directory before it is not; the header of the other is nested."""
    file, nested, header = saved(tmp_path, STATE), tmp_path / "w.safetensors", b"[" * 200_000
    file.write_bytes(file.read_bytes().replace(b"PK\1\2", b"PK\7\7", 1))
    nested.write_bytes(len(header).to_bytes(8, "little") + header)
    for one in (file, nested):
        with pytest.raises(WeightsError, match="damaged"):
            find_weights(one, STATE)
    content = saved(tmp_path, STATE).read_bytes()
    for place in range(len(content) - 500, len(content)):  # the directory and its end
        file.write_bytes(content[:place] + bytes([content[place] ^ 0xE9]) + content[place + 1 :])
        with suppress(WeightsError, PackagingError):
            find_weights(file, STATE)


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_tied_weights_and_those_with_strides_are_written_in_both_formats(tmp_path: Path, name: str) -> None:
    """Safetensors has no tensor twice, so they are two equal ones there."""
    tied, strided = torch.arange(4.0), torch.arange(6.0).view(2, 3).t()
    write_weights({"a": tied, "b": tied}, tmp_path / name)
    assert all(torch.equal(one, tied) for one in read_weights(tmp_path / name).values())
    write_weights({"a": strided, "b": strided[:1]}, tmp_path / name)
    assert torch.equal(read_weights(tmp_path / name)["a"], strided)


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_written_weights_are_read_back_while_the_old_file_is_mapped(tmp_path: Path, name: str) -> None:
    """The old tensors keep their values: the file is replaced, not changed."""
    file = tmp_path / name
    write_weights({"a": torch.arange(1000)}, file)
    old = read_weights(file)["a"]
    write_weights({"a": -torch.arange(1000)}, file)

    assert torch.equal(old, torch.arange(1000))
    assert torch.equal(read_weights(file)["a"], -torch.arange(1000))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    if name.endswith(".safetensors"):
        assert list(load_file(file)) == ["a"]


class One(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)


def refusal(serialized: Path | None) -> str:
    with pytest.raises(PackagingError) as refused:
        load_state_dict(One(), serialized)
    return str(refused.value)


def test_a_model_without_weights_needs_no_file() -> None:
    assert load_state_dict(torch.nn.Tanh(), None) is None


def test_weights_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"linear.weight": torch.zeros(2, 4), "other": torch.zeros(1)}, path)
    text = refusal(path)

    assert "missing: linear.bias [2]" in text
    assert "not in the model: other [1]" in text
    assert "linear.weight: the model has [2, 3], the file [2, 4]" in text


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_bytes_that_are_no_bools_are_refused(tmp_path: Path, name: str) -> None:
    """Engines read the bytes of a mask, each in its own way."""
    model = nn.Module()
    model.register_buffer("mask", torch.tensor([True, False]))
    file = tmp_path / name
    write_weights({"mask": torch.tensor([7, 0], dtype=torch.uint8).view(torch.bool)}, file)

    with pytest.raises(PackagingError, match="a byte of bools is 0 or 1, there are others in:\n  mask"):
        load_state_dict(model, file)


def test_a_hostile_file_gets_a_short_and_printable_refusal(tmp_path: Path) -> None:
    """Its tensors may share one number, and their copies would take all memory."""
    content = {
        "linear.weight": torch.zeros([1] * 2000),
        "linear.bias": torch.zeros(1).expand(2**45),
        **{f"\x1b[31m\n{'w' * 1000}{index}": torch.zeros(0) for index in range(150)},
    }
    torch.save(content, tmp_path / "weights.pt")
    text = refusal(tmp_path / "weights.pt")
    torch.save({"linear.weight": content["linear.weight"]}, tmp_path / "weights.pt")

    assert "the file [1, 1, 1" in refusal(tmp_path / "weights.pt")
    assert "and 52 more" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 400


@pytest.mark.parametrize(
    "save",
    [
        lambda path: None,
        lambda path: torch.save(torch.nn.Linear(3, 2), path),
        lambda path: torch.jit.save(torch.jit.script(torch.nn.Linear(3, 2)), path),
    ],
    ids=["no file", "a pickled module", "a TorchScript archive"],
)
def test_what_has_no_state_dict_is_refused_with_the_way_out(tmp_path: Path, save: Callable[[Path], None]) -> None:
    path = tmp_path / "weights.pt"
    save(path)

    assert "torch.save(model.state_dict()" in refusal(path if path.exists() else None)


def test_the_part_of_a_checkpoint_that_was_read_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    model, state = One(), One().state_dict()
    torch.save(state, tmp_path / "weights.pt")
    path = tmp_path / "checkpoint.pt"
    torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}, "epoch": 3}, path)
    load_state_dict(One(), tmp_path / "weights.pt", told.append)
    load_state_dict(model, path, told.append)

    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert told == ["checkpoint.pt['state_dict'] holds the weights; the prefix 'module.' of their names was left out"]

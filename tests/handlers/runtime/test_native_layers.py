"""Layers of torch that the native library computes: every form of a call, against torch's own kernels."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree

from torchserve_neuron_lstm.backends.native.build import build
from torchserve_neuron_lstm.backends.native.library import LayerStack
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.handlers.runtime.native_layers import native_layers, use_native_layers

pytestmark = pytest.mark.skipif(get_backend("native").unavailable() is not None, reason="no compiler")

LAYERS: dict[str, Callable[[], nn.RNNBase]] = {
    "lstm": lambda: nn.LSTM(3, 5, batch_first=True),
    "time first": lambda: nn.LSTM(3, 5),
    "bidirectional": lambda: nn.LSTM(3, 5, num_layers=2, bidirectional=True, batch_first=True),
    "projection": lambda: nn.LSTM(3, 5, proj_size=2, batch_first=True),
    "gru without biases": lambda: nn.GRU(3, 5, bias=False, num_layers=2),
    "tanh": lambda: nn.RNN(3, 5, bidirectional=True, batch_first=True),
    "relu": lambda: nn.RNN(3, 5, nonlinearity="relu"),
}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libraries")
    build(folder)
    return folder


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One element for each call of the library."""
    calls: list[None] = []
    run = LayerStack.run

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return run(*args, **kwargs)

    monkeypatch.setattr(LayerStack, "run", counted)
    return calls


def pair(name: str, libraries: Path) -> tuple[nn.RNNBase, nn.RNNBase]:
    """The layer as it is, and a copy that the library computes."""
    torch.manual_seed(0)
    layer = LAYERS[name]().eval()
    other = copy.deepcopy(layer)
    use_native_layers(other, libraries, 1)
    return layer, other


def states_of(layer: nn.RNNBase, rows: int | None) -> Any:
    count = layer.num_layers * (1 + layer.bidirectional)
    sizes = [layer.proj_size or layer.hidden_size, layer.hidden_size]
    made = [torch.randn(*(count, size) if rows is None else (count, rows, size)) for size in sizes]
    return tuple(made) if isinstance(layer, nn.LSTM) else made[0]


def assert_same(layer: nn.RNNBase, other: nn.RNNBase, *arguments: Any) -> None:
    with torch.no_grad():
        leaves = (pytree.tree_leaves(one(*arguments)) for one in (layer, other))
        expected, found = ([leaf for leaf in own if leaf is not None] for own in leaves)
    assert [tensor.shape for tensor in found] == [tensor.shape for tensor in expected]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_the_library_computes_what_torch_computes(name: str, libraries: Path, computed: list[None]) -> None:
    layer, other = pair(name, libraries)
    one_row = (1, 7, 3) if layer.batch_first else (7, 1, 3)

    for shape, rows in ((one_row, 1), ((4, 6, 3), 4 if layer.batch_first else 6), ((7, 3), None)):
        x = torch.randn(shape)
        assert_same(layer, other, x)
        assert_same(layer, other, x, states_of(layer, rows))
    assert_same(layer, other, torch.randn(3, *one_row[1::-1]).permute(2, 1, 0))  # features far apart in memory
    packed = pack_padded_sequence(torch.randn(one_row), torch.tensor([7]), layer.batch_first)
    assert_same(layer, other, packed)
    assert_same(layer, other, packed, states_of(layer, 1))
    assert len(computed) == 9


def test_packed_data_of_several_rows_is_left_to_torch(libraries: Path, computed: list[None]) -> None:
    layer, other = pair("lstm", libraries)
    packed = pack_padded_sequence(torch.randn(2, 7, 3), torch.tensor([3, 7]), batch_first=True, enforce_sorted=False)

    assert_same(layer, other, packed)
    with torch.no_grad():
        y, lengths = pad_packed_sequence(other(packed)[0], batch_first=True)
    assert (y.shape, lengths.tolist()) == ((2, 7, 5), [3, 7])
    assert not computed


def change_a_weight(layer: nn.RNNBase) -> None:
    with torch.no_grad():
        layer.weight_hh_l0.mul_(2)  # type: ignore[operator]  # a parameter


def replace_a_weight(layer: nn.RNNBase) -> None:
    layer.weight_hh_l0 = nn.Parameter(layer.weight_hh_l0 * 2)  # type: ignore[operator,arg-type]  # a parameter


def set_data(layer: nn.RNNBase) -> None:
    weight: Any = layer.weight_hh_l0
    weight.data = weight.data * 2


@pytest.mark.parametrize("change", [change_a_weight, replace_a_weight, set_data, nn.Module.double, nn.Module.train])
def test_a_changed_layer_is_left_to_torch(change: Callable[..., object], libraries: Path, computed: list[None]) -> None:
    layer, other = pair("bidirectional", libraries)
    change(layer)
    change(other)
    weight = next(layer.parameters())

    assert_same(layer, other, torch.randn(2, 7, 3, dtype=weight.dtype))
    assert not computed


def test_a_copy_of_a_layer_has_weights_of_its_own(libraries: Path) -> None:
    layer, other = pair("lstm", libraries)
    copied = copy.deepcopy(other)
    change_a_weight(copied)
    x = torch.randn(1, 7, 3)

    assert_same(layer, other, x)
    change_a_weight(layer)
    assert_same(layer, copied, x)


def test_gradients_and_autocast_are_left_to_torch(libraries: Path, computed: list[None]) -> None:
    layer, other = pair("lstm", libraries)
    x = torch.randn(1, 7, 3, requires_grad=True)

    other(x)[0].sum().backward()
    assert x.grad is not None
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(layer, other, x)
    assert not computed


def test_errors_are_those_of_torch(libraries: Path) -> None:
    _, other = pair("lstm", libraries)
    for shape in ((1, 7, 4), (1, 0, 3), (1, 1, 7, 3)):
        with torch.no_grad(), pytest.raises((RuntimeError, ValueError)) as ours:
            other(torch.randn(shape))
        with torch.no_grad(), pytest.raises((RuntimeError, ValueError)) as theirs:
            LAYERS["lstm"]()(torch.randn(shape))
        assert str(ours.value) == str(theirs.value)


class Sub(torch.Tensor):
    pass


STATES: dict[str, Callable[[torch.Tensor], Any]] = {
    "float64": torch.Tensor.double,
    "float16": torch.Tensor.half,
    "whole numbers": torch.Tensor.char,
    "without elements": lambda h: h.to("meta"),
    "sparse": torch.Tensor.to_sparse,
    "of another batch": lambda h: h.expand(-1, 2, -1),
    "of other units": lambda h: h[..., :1],
    "with a bit for their sign": torch._neg_view,
    "of a class of the user's": lambda h: h.as_subclass(Sub),
}


def outcome(layer: nn.RNNBase, *arguments: Any) -> Any:
    """The outputs of a call, or its error."""
    try:
        with torch.no_grad():
            return pytree.tree_leaves(layer(*arguments))
    except Exception as error:  # noqa: BLE001 - whatever torch raises
        return type(error), str(error)


def assert_same_outcome(layer: nn.RNNBase, other: nn.RNNBase, *arguments: Any) -> None:
    expected, found = outcome(layer, *arguments), outcome(other, *arguments)
    if isinstance(expected, tuple):
        assert found == expected
    else:
        assert list(map(type, found)) == list(map(type, expected))
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("name", ["lstm", "projection", "gru without biases", "tanh"])
def test_states_of_another_kind_are_left_to_torch(name: str, kind: str, libraries: Path, computed: list[None]) -> None:
    layer, other = pair(name, libraries)
    x = torch.randn((1, 7, 3) if layer.batch_first else (7, 1, 3))
    packed = pack_padded_sequence(x, torch.tensor([7]), layer.batch_first)
    states = pytree.tree_map(STATES[kind], states_of(layer, 1))

    assert_same_outcome(layer, other, x, states)
    if kind == "of another batch":  # torch's own kernel reads beyond them
        outcome(other, packed, states)
    else:
        assert_same_outcome(layer, other, packed, states)
    if isinstance(layer, nn.LSTM):
        assert_same_outcome(layer, other, x, (states_of(layer, 1)[0], states[1]))
    assert not computed


def test_states_with_nan_or_far_apart_in_memory_are_computed(libraries: Path, computed: list[None]) -> None:
    layer, other = pair("bidirectional", libraries)
    h, c = states_of(layer, 2)

    assert_same_outcome(layer, other, torch.randn(2, 7, 3), [h * float("nan"), c])
    assert_same_outcome(
        layer, other, torch.randn(2, 7, 3), (h.mT.contiguous().mT, c[..., ::2].repeat(1, 1, 2)[..., :5])
    )
    assert_same_outcome(layer, other, torch.randn(2, 7, 3), (h[:, :1].expand(-1, 2, -1), c))
    assert len(computed) == 3


@pytest.mark.parametrize("name", ["lstm", "gru without biases"])
def test_calls_of_another_form_are_left_to_torch(name: str, libraries: Path, computed: list[None]) -> None:
    layer, other = pair(name, libraries)
    x = torch.randn((1, 7, 3) if layer.batch_first else (7, 1, 3))
    h = torch.randn(layer.num_layers, 1, 5)
    for states in ((h,), (h, h, h), torch.stack([h, h])):
        assert_same_outcome(layer, other, x, states)
    for sizes in ([2, 2], [1, 2], [0, 2]):
        assert_same_outcome(layer, other, PackedSequence(torch.randn(2, 3), torch.tensor(sizes)))
    assert_same_outcome(layer, other, PackedSequence(torch.randn(2, 3), torch.ones(2, dtype=torch.int32)))
    assert_same_outcome(layer, other, torch._neg_view(x))
    for own in (layer, other):
        own.bidirectional = True
    assert_same_outcome(layer, other, x)
    assert not computed


def test_transforms_of_torch_are_left_to_torch(libraries: Path, computed: list[None]) -> None:
    layer, other = pair("gru without biases", libraries)
    x = torch.randn(7, 1, 3)

    def gradient(one: nn.RNNBase) -> Any:
        with torch.no_grad(), forward_ad.dual_level():
            found = forward_ad.unpack_dual(one(forward_ad.make_dual(x, torch.ones_like(x)))[0]).tangent
        assert found is not None
        return found

    torch.testing.assert_close(gradient(other), gradient(layer), atol=1e-5, rtol=1e-5)
    with pytest.raises(RuntimeError, match="Batching rule"), torch.no_grad():
        torch.func.vmap(lambda row: other(row)[0])(x[None])
    assert not computed


def test_only_layers_of_torch_itself_in_float32_are_computed() -> None:
    class Own(nn.LSTM):
        pass

    model = nn.ModuleList([nn.LSTM(3, 5), Own(3, 5), nn.GRU(3, 5).double(), nn.Linear(3, 5)])

    assert [name for name, _ in native_layers(model)] == ["0"]

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from changing_model import Model, user_file
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations

from torchserve_neuron_lstm.handlers.runtime import kept_state
from torchserve_neuron_lstm.handlers.runtime.kept_state import KeptState
from torchserve_neuron_lstm.handlers.runtime.state_places import content_of


def set_constant(model: Model) -> None:
    with torch.inference_mode():
        model.constant.add_(1)


def write(tensor: torch.Tensor) -> None:
    tensor.detach().numpy()[:] = 5


def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    tensor.data = value


def share(model: Model) -> None:
    with torch.no_grad():
        model.large.set_(model.plain.untyped_storage())


def set_flag(array: Any) -> None:
    array.flags.writeable = not array.flags.writeable
    if array.flags.writeable:
        array[:] = 5


def replace_key(model: Model) -> None:
    model.ordered.clear()
    model.ordered.update(b=1)


class Other:
    value = 0


def fill_in_place(model: Model) -> None:
    with torch.no_grad():
        model.frozen.fill_(7)


def equals(model: Model) -> None:
    class Equal:
        def __hash__(self) -> int:
            return hash("a")

        def __eq__(self, other: object) -> bool:
            return True

    model.names.clear()
    model.names.add(Equal())  # type: ignore[arg-type]  # a user's mistake


def reorder(model: Model) -> None:
    """Let a number give way to another one that wants its slot, for a while."""
    model.numbers.remove(8)
    model.numbers.add(24)
    model.numbers.add(8)
    model.numbers.remove(24)


def reorder_class(model: Model) -> None:
    del model.file.Counter.total
    model.file.Counter.total = 0


CHANGES: dict[str, tuple[Callable[[Model], object], Callable[[Model], object]]] = {
    "attribute": (lambda m: setattr(m, "attribute", torch.ones(1)), lambda m: m.attribute),
    "new attribute": (lambda m: setattr(m, "other", 1), lambda m: hasattr(m, "other")),
    "deleted attribute": (lambda m: delattr(m, "plain"), lambda m: m.plain.tolist()),
    "buffer": (lambda m: m.seen.add_(1), lambda m: m.seen.tolist()),
    "buffer set": (lambda m: setattr(m, "seen", torch.ones(2)), lambda m: m.seen.tolist()),
    "parameter": (fill_in_place, lambda m: m.frozen.tolist()),
    "plain tensor": (lambda m: m.plain.mul_(0).add_(2), lambda m: m.plain.tolist()),
    "row of an expanded tensor": (lambda m: m.expanded[:, 0].add_(1), lambda m: m.expanded.tolist()),
    "row of a large expanded tensor": (lambda m: m.repeated[0].add_(1), lambda m: m.repeated.sum()),
    "element of an expanded buffer": (lambda m: m.rows[1].add_(1), lambda m: m.rows.tolist()),
    "shape of a tensor": (lambda m: set_data(m.square, m.square.data.view(4)), lambda m: m.square),
    "transposed tensor": (lambda m: set_data(m.square, m.square.data.T), lambda m: m.square),
    "resized tensor": (lambda m: m.plain.resize_(9), lambda m: m.plain.tolist()),
    "attribute of a layer": (lambda m: setattr(m.layer, "hidden", 1), lambda m: hasattr(m.layer, "hidden")),
    "training": (lambda m: m.layer.train(False), lambda m: m.layer.training),
    "list": (lambda m: m.items.append(2), lambda m: m.items),
    "deque in dicts": (lambda m: m.nested["inner"]["list"].append(3), lambda m: [*m.nested["inner"]["list"]]),
    "key of the same value": (replace_key, lambda m: dict(m.ordered)),
    "set": (lambda m: m.names.add("b"), lambda m: m.names),
    "dict that refuses": (lambda m: dict.update(m.frozen_dict, b=1), lambda m: dict(dict.items(m.frozen_dict))),
    "list that refuses": (lambda m: m.frozen_list.append(2), lambda m: m.frozen_list),
    "set that refuses": (lambda m: m.frozen_set.add(2), lambda m: m.frozen_set),
    "dict that converts": (lambda m: m.doubling.__setitem__("b", 1), lambda m: dict(m.doubling)),
    "list that hides": (lambda m: m.hiding.append(2), lambda m: len(m.hiding)),
    "module that is no file": (lambda m: setattr(m.settings, "scale", 2), lambda m: m.settings.scale),
    "object of a method of Python": (lambda m: m.extend("b"), lambda m: m.extend.__self__),
    "transposed parameter": (lambda m: set_data(m.matrix, m.matrix.data.T), lambda m: m.matrix),
    "number of a program": (lambda m: setattr(m.script.child, "scale", 2.0), lambda m: m.script.child.scale),
    "new attribute of a program": (lambda m: setattr(m.script, "other", 1), lambda m: hasattr(m.script, "other")),
    "dict written by a finaliser": (lambda m: setattr(m, "late", m.file.Writing(m.user)), lambda m: m.user.data),
    "parameter written by a finaliser": (
        lambda m: m.items.append(m.file.Filling(m.frozen)),
        lambda m: m.frozen.tolist(),
    ),
    "object that equals the one before": (equals, lambda m: [type(one) for one in m.names]),
    "order of a set": (reorder, lambda m: [*m.numbers]),
    "object": (lambda m: setattr(m.counter, "value", 3), lambda m: m.counter.value),
    "dict of an object": (lambda m: setattr(m.counter, "__dict__", {"value": 3}), lambda m: m.counter.value),
    "dict of a module": (lambda m: setattr(m, "__dict__", {**vars(m), "other": 1}), lambda m: hasattr(m, "other")),
    "slot": (lambda m: setattr(m.slotted, "most", 3), lambda m: m.slotted.most),
    "list in a slot": (lambda m: m.slotted.most.append(3), lambda m: m.slotted.most),
    "unset slot": (lambda m: setattr(m.slotted, "least", 3), lambda m: hasattr(m.slotted, "least")),
    "slot of a list": (lambda m: setattr(m.slots, "most", 3), lambda m: hasattr(m.slots, "most")),
    "slot of a module": (lambda m: setattr(m.part, "most", 3), lambda m: hasattr(m.part, "most")),
    "attribute of a number": (lambda m: setattr(m.number, "most", 3), lambda m: vars(m.number)),
    "default value of a property": (lambda m: m.number.seen.append(1), lambda m: m.number.seen),
    "default value of a cached property": (lambda m: m.number.kept.append(1), lambda m: m.number.kept),
    "global with underscores": (lambda m: vars(m.file)["__seen"].append(1), lambda m: vars(m.file)["__seen"]),
    "object as a key": (lambda m: next(iter(m.keys)).add(), lambda m: [one.value for one in m.keys]),
    "list behind a proxy": (lambda m: m.proxy["a"].append(2), lambda m: m.proxy["a"]),
    "class of an object": (lambda m: setattr(m.counter, "__class__", Other), lambda m: type(m.counter)),
    "cache": (lambda m: m.file.cached(3).append(1), lambda m: m.file.cached.cache_info()),
    "running statistics": (lambda m: m.norm.train()(torch.ones(3, 2)), lambda m: str(m.norm.running_mean)),
    "tensor of inference mode": (set_constant, lambda m: m.constant.tolist()),
    "second number of a pair": (lambda m: m.numpy.normal(), lambda m: m.numpy.get_state()),
    "attribute of a program": (lambda m: m.script(torch.ones(2)), lambda m: m.script.count),
    "list of a program": (lambda m: m.script(torch.ones(2)), lambda m: m.script.sums),
    "keys of a program": (lambda m: m.script(torch.ones(2)), lambda m: m.script.keys),
    "tensor of a program": (lambda m: m.script(torch.ones(2)), lambda m: m.script.last),
    "attribute of a part": (lambda m: m.script(torch.ones(2)), lambda m: m.script.child.count),
    "frozen object": (lambda m: object.__setattr__(m.frozen_object, "a", 2), lambda m: m.frozen_object.a),
    "weak set": (lambda m: m.weak.add(m), lambda m: len(m.weak)),
    "options": (lambda m: setattr(m.file.OPTIONS, "scale", 2), lambda m: m.file.OPTIONS),
    "hook": (lambda m: m.layer.register_forward_hook(print), lambda m: [*m.layer._forward_hooks.values()]),
    "hooks replaced": (lambda m: setattr(m.hooked, "_forward_hooks", OrderedDict()), lambda m: m.hooked(m.seen)),
    "hooks before a call replaced": (
        lambda m: setattr(m.layer, "_forward_pre_hooks", OrderedDict({0: lambda _, given: (2 + given[0],)})),
        lambda m: m.layer(m.seen),
    ),
    "hook with named arguments": (lambda m: m.hook.remove(), lambda m: m.hooked(m.seen)),
    "buffers replaced": (lambda m: vars(m).update(_buffers={"seen": torch.ones(2)}), lambda m: m.seen.tolist()),
    "parts replaced": (lambda m: setattr(m.both, "_modules", {}), lambda m: len(m.both)),
    "class of a layer": (lambda m: setattr(m.both[1], "__class__", nn.ReLU), lambda m: m.both(m.seen - 1)),
    "parametrization": (lambda m: weight_norm(m.layer), lambda m: m.layer(m.seen + 1)),
    "second parametrization": (
        lambda m: register_parametrization(m.normed, "bias", nn.Tanh()),
        lambda m: (m.normed(m.seen), sorted(vars(type(m.normed)))),
    ),
    "removed parametrization": (
        lambda m: remove_parametrizations(m.normed, "weight"),
        lambda m: (m.normed(m.seen + 1), sorted(vars(type(m.normed)))),
    ),
    "object of a method": (lambda m: m.add(), lambda m: m.add.__self__.value),
    "object of a built-in method": (lambda m: m.put(a=1), lambda m: m.put.__self__),
    "argument of a partial call": (lambda m: m.partial(), lambda m: m.partial.args),
    "attribute of a list": (lambda m: setattr(m.words, "most", 3), lambda m: vars(m.words)),
    "attribute of a parameter": (lambda m: setattr(m.frozen, "most", 3), lambda m: vars(m.frozen)),
    "object in a set": (lambda m: next(iter(m.counters)).add(), lambda m: [one.value for one in m.counters]),
    "dict of the library": (lambda m: m.user.update(a=2), lambda m: dict(m.user)),
    "class": (lambda m: setattr(m.file.Counter, "total", 3), lambda m: m.file.Counter.total),
    "global": (lambda m: setattr(m.file, "COUNT", 5), lambda m: m.file.COUNT),
    "global dict": (lambda m: m.file.SEEN.update(a=1), lambda m: m.file.SEEN),
    "global namespace": (lambda m: setattr(m.file.SETTINGS, "scale", 2), lambda m: m.file.SETTINGS),
    "default value": (lambda m: m.file.defaulted(1), lambda m: len(m.file.defaulted.__defaults__[0])),
    "attribute of a function": (lambda m: setattr(m.file.defaulted, "n", 1), lambda m: vars(m.file.defaulted)),
    "attribute of a method": (lambda m: setattr(m.file.Counter.add, "n", 1), lambda m: vars(m.file.Counter.add)),
    "attribute of a cache": (lambda m: setattr(m.file.cached, "n", 1), lambda m: vars(m.file.cached).keys()),
    "results around a wrapped function": (
        lambda m: m.file.zeros(2).add_(1),
        lambda m: m.file.zeros.__closure__[1].cell_contents,
    ),
    "cache of torch's function": (lambda m: m.file.cached_zeros(2).add_(1), lambda m: m.file.cached_zeros(2).tolist()),
    "cache of a partial call": (lambda m: m.file.cached_number(), lambda m: m.file.cached_number.cache_info()),
    "variable of an enclosing function": (lambda m: m.file.add(), lambda m: m.file.add.__closure__[0].cell_contents),
    "special attribute of a class": (
        lambda m: setattr(m.file.Counter, "__n__", 1),
        lambda m: hasattr(m.file.Counter, "__n__"),
    ),
    "special method": (lambda m: setattr(m.file.Callable, "__call__", print), lambda m: m.callable()),
    "default value of a special method": (lambda m: m.callable().append(1), lambda m: m.callable()),
    "base class made by a function": (lambda m: m.callable.found.append(1), lambda m: m.callable.found),
    "special global": (lambda m: vars(m.file)["__found__"].append(1), lambda m: vars(m.file)["__found__"]),
    "sealed class": (lambda m: type.__setattr__(m.file.Sealed, "total", 1), lambda m: m.file.Sealed.total),
    "class of a sealed object": (
        lambda m: object.__setattr__(m.sealed, "__class__", Other),
        lambda m: type(m.sealed).__name__,
    ),
    "attribute of a generator": (lambda m: setattr(m.seeded, "n", 1), lambda m: vars(m.seeded)),
    "list in an array": (lambda m: m.lists[0].append(1), lambda m: m.lists),
    "list in an array's record": (lambda m: m.records["found"][0].append(1), lambda m: m.records),
    "attribute of an array": (lambda m: setattr(m.recarray, "extra", 1), lambda m: sorted(vars(m.recarray))),
    "size of an array": (lambda m: m.floats.resize(9, refcheck=False), lambda m: m.floats),
    "shape of an array": (lambda m: setattr(m.floats, "shape", (2, 2)), lambda m: m.floats),
    "type of an array": (lambda m: setattr(m.floats, "dtype", np.dtype("int16")), lambda m: m.floats),
    "array that becomes read-only": (lambda m: set_flag(m.floats), lambda m: (m.floats, m.floats.flags)),
    "array that was read-only": (lambda m: set_flag(m.fixed), lambda m: (m.fixed, m.fixed.flags)),
    "memory of a view": (lambda m: m.view.__setitem__(0, 1), lambda m: m.view[0]),
    "buffer through numpy": (lambda m: write(m.seen), lambda m: m.seen.tolist()),
    "buffer through its storage": (
        lambda m: m.seen.untyped_storage().copy_(torch.ones(2).untyped_storage()),
        lambda m: m.seen.tolist(),
    ),
    "buffer through data": (lambda m: m.seen.data.add_(1), lambda m: m.seen.tolist()),
    "data of a tensor": (lambda m: set_data(m.seen, torch.ones(3)), lambda m: m.seen.tolist()),
    "type of a tensor": (lambda m: set_data(m.seen, torch.ones(2).double()), lambda m: m.seen),
    "data of a parameter": (lambda m: set_data(m.frozen, torch.full((2,), 9.0)), lambda m: m.frozen.tolist()),
    "memory of another tensor": (share, lambda m: (m.large.shape, m.large.sum(), m.plain)),
    "swapped tensors": (lambda m: torch.utils.swap_tensors(m.plain, m.large), lambda m: (m.plain, m.large.shape)),
    "generator of torch": (lambda m: torch.rand(1, generator=m.generator), lambda m: m.generator.get_state().tolist()),
    "generator of Python": (lambda m: m.python.random(), lambda m: m.python.getstate()),
}


@pytest.mark.parametrize("version", [vars(kept_state)["dict_version"], content_of])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed_and_put_back(name: str, version: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_state, "dict_version", version)  # the second: that of a torch which reads none
    file = user_file()
    model = Model(file)
    change, read = CHANGES[name]
    state = KeptState(model, [file], {key: tensor.clone() for key, tensor in model.state_dict().items()})
    other, read_other = CHANGES["attribute"]
    before = str(read(model)), str(read_other(model))

    for changes in ([change], [change], [other], [change, other], [other, change]):
        for one in changes:
            one(model)
        state.restore()

        assert (str(read(model)), str(read_other(model))) == before
    assert len(state.changed) >= 1
    assert state.unnoticed() == []


LOST: dict[str, Callable[[Model], object]] = {
    "order of a class": reorder_class,
    "cache that was filled": lambda m: m.file.filled(2),
    "order of a set": lambda m: m.collided.add(1),
}


@pytest.mark.parametrize("name", LOST)
def test_what_cannot_be_put_back_is_told(name: str) -> None:
    file = user_file()
    model = Model(file)
    state = KeptState(model, [file], {})
    assert state.restore()

    LOST[name](model)

    assert not state.restore()
    assert not state.restore()


def test_nothing_is_changed_where_nothing_was() -> None:
    model = nn.Sequential(nn.LSTM(2, 3), nn.Linear(3, 2), nn.BatchNorm1d(2)).eval()
    state = KeptState(model, [], {})

    model[0](torch.ones(4, 1, 2))
    model[2](torch.ones(4, 2))
    state.restore()

    assert state.changed == {}


def test_what_is_written_through_data_is_found_and_can_be_put_back_each_time() -> None:
    model = nn.BatchNorm1d(2)
    state = KeptState(model, [], {})
    assert model.weight is not None
    model.weight.data.add_(1)
    state.restore()
    assert state.unnoticed() == ["self.weight"]

    model.weight.data.sub_(1)
    known = KeptState(model, [], {}, ["self.weight"])
    model.weight.data.add_(1)
    known.restore()

    assert model.state_dict()["weight"].tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_the_sign_of_a_zero_is_put_back(dtype: torch.dtype) -> None:
    model: Any = nn.Module()
    model.register_buffer("sign", torch.zeros(2, 3, dtype=dtype).T)
    state = KeptState(model, [], {})

    for _ in range(2):
        torch.view_as_real(model.sign).neg_() if dtype.is_complex else model.sign.neg_()
        state.restore()

        assert not torch.signbit(model.sign.real).any()
    assert [*state.changed] == ["self.sign"]


class Negating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sign: Any = torch.jit.Attribute(0.0, float)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sign = -self.sign
        return x


def test_the_sign_of_a_zero_of_a_program_is_put_back() -> None:
    program = torch.jit.script(Negating())
    state = KeptState(program, [], {})

    program(torch.ones(1))
    state.restore()

    assert str(program.sign) == "0.0"


def test_nan_in_a_buffer_is_not_a_change() -> None:
    model = nn.Module()
    model.register_buffer("limits", torch.tensor([float("nan"), -0.0]))
    state = KeptState(model, [], {})

    state.restore()

    assert not state._is_changed()
    assert state.unnoticed() == []

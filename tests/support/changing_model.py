"""A model whose state is of every kind that a request can change, and the file of its user."""

import random
from collections import OrderedDict, UserDict, deque
from functools import partial
from types import MappingProxyType, ModuleType
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import nn

FILE = """
import argparse
import functools
import random
import types
import torch
from torch import nn

COUNT = 0
SEEN = {}
States = tuple[torch.Tensor, torch.Tensor]  # a type with the attributes of `tuple`
SETTINGS = types.SimpleNamespace(scale=1)
OPTIONS = argparse.Namespace(scale=1)


class Slotted:
    __slots__ = ("most", "least")


def slotted():
    made = Slotted()
    made.most = [1.0]
    return made


class Slots(list):
    __slots__ = ("most",)


class Frozen:
    __slots__ = ("a",)

    def __init__(self, a):
        object.__setattr__(self, "a", a)

    def __setattr__(self, name, value):
        raise AttributeError(name)


class Number(float):
    @property
    def seen(self, seen=[]):
        return seen

    @functools.cached_property
    def kept(self, kept=[]):
        return kept


class Layer(nn.Module):
    __slots__ = ("most",)

    def forward(self, x):
        return x


@functools.lru_cache
def cached(x):
    return [x]


__seen = []


class Counter:
    total = 0

    def __init__(self):
        self.value = 0

    def add(self):
        self.value += 1


class Words(list):
    pass


def defaulted(x, cache=[]):
    cache.append(x)
    return len(cache)


__found__ = []


def counter():
    count = 0

    def add():
        nonlocal count
        count += 1
        return count

    return add


def base():
    class Base:
        found = []

    return Base


class Callable(base()):
    def __call__(self, found=[]):
        return found


class Meta(type):
    def __setattr__(cls, name, value):
        raise AttributeError(name)


class Sealed(metaclass=Meta):
    total = 0

    def __setattr__(self, name, value):
        raise AttributeError(name)


class FrozenDict(dict):
    def refuse(self, *_):
        raise TypeError

    clear = update = __setitem__ = refuse


class FrozenList(list):
    def clear(self):
        raise TypeError


class FrozenSet(set):
    def clear(self):
        raise TypeError


class Seeded(random.Random):
    pass


class Doubling(dict):
    def __setitem__(self, name, value):
        super().__setitem__(name, 2 * value)

    def update(self, values):
        for name, value in values.items():
            self[name] = value


class Hiding(list):
    def __iter__(self):
        return iter(())


class Writing:
    def __init__(self, user):
        self.user = user

    def __del__(self):
        self.user["late"] = 1


class Filling(Writing):
    def __del__(self):
        with torch.no_grad():
            self.user.fill_(5)


add = counter()


def memoized(function):
    results = {}

    @functools.wraps(function)
    def memo(*args):
        if args not in results:
            results[args] = function(*args)
        return results[args]

    return memo


zeros = memoized(torch.zeros)
filled = functools.lru_cache(1)(abs)
filled(1)
cached_zeros = functools.lru_cache(None)(torch.zeros)
cached_number = functools.lru_cache(None)(functools.partial(len, "a"))
"""


def user_file() -> ModuleType:
    module = ModuleType("user_file")
    exec(FILE, module.__dict__)
    return module


def collided() -> set[int]:
    """Return a set in an order that no new set of these numbers has, because of another one that was in it."""
    numbers = {72}
    for number in (0, 8, 16, 24):
        numbers.add(number)
    numbers.remove(72)
    numbers.add(56)
    return numbers


def settings() -> Any:
    module: Any = ModuleType("settings")
    module.scale = 1
    return module


class Model(nn.Module):
    seen: torch.Tensor
    rows: torch.Tensor

    def __init__(self, file: ModuleType) -> None:
        super().__init__()
        self.file: Any = file
        self.layer = nn.Linear(2, 2)
        self.both, self.hooked = nn.Sequential(nn.Identity(), nn.Tanh()), nn.Identity()
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
        self.hook = self.hooked.register_forward_hook(lambda *given: given[-1] + len(given), with_kwargs=True)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("seen", torch.zeros(2))
        self.plain = torch.zeros(3)
        self.square = torch.arange(4.0).view(2, 2)
        self.attribute: Any = None
        self.items: list[Any] = [1]
        self.nested: dict[str, Any] = {"inner": {"list": deque([1, 2])}}
        self.ordered: OrderedDict[str, int] = OrderedDict(a=1)
        self.names, self.numbers, self.collided = {"a"}, {8, 16, 0}, collided()
        self.counter = file.Counter()
        self.slotted = file.slotted()
        self.generator, self.python = torch.Generator().manual_seed(1), random.Random(1)
        self.add: Any = file.Counter().add  # a method, whose object is held by nothing else
        self.put: Any = {}.update
        self.partial = partial(file.defaulted, 1, [])
        self.words, self.counters = file.Words("a"), {file.Counter()}
        self.user = UserDict(a=1)
        self.norm = nn.BatchNorm1d(2).eval()
        self.slots, self.part, self.number = file.Slots(), file.Layer(), file.Number(1)
        self.keys, self.proxy = {file.Counter(): 1}, MappingProxyType({"a": [1]})
        self.numpy = np.random.RandomState(1)
        self.frozen_object, self.weak = file.Frozen(1), WeakSet[Any]()
        self.system = random.SystemRandom()  # has no state
        self.expanded, self.repeated = torch.zeros(2, 1).expand(2, 3), torch.zeros(1, 3).expand(1 << 20, 3)
        self.register_buffer("rows", torch.zeros(1, 3).expand(4, 3))
        self.script = torch.jit.script(Counting())
        self.large = torch.zeros(40_000)
        self.floats, self.fixed = np.zeros(4, np.float32), np.zeros(4, np.float32)
        self.fixed.setflags(write=False)
        self.lists = np.empty(1, object)
        self.lists[0] = []
        self.records = np.array([(1, [])], [("n", int), ("found", object)])
        self.records.setflags(write=False)
        self.recarray = np.recarray((2,), [("n", int)])
        self.view = memoryview(bytearray(2))
        self.callable, self.sealed = file.Callable(), file.Sealed()
        self.frozen_dict, self.frozen_list = file.FrozenDict(a=1), file.FrozenList([1])
        self.frozen_set, self.seeded = file.FrozenSet([1]), file.Seeded(1)
        self.doubling, self.hiding, self.late = file.Doubling(a=1), file.Hiding([1]), None
        self.settings = settings()
        self.extend: Any = ["a"].__iadd__
        self.matrix = nn.Parameter(torch.arange(4.0).view(2, 2))
        with torch.inference_mode():
            self.constant = torch.zeros(2)


class Child(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count: Any = torch.jit.Attribute(0, int)
        self.scale: Any = torch.jit.Attribute(1.0, float)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = x * self.scale
        return scaled


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count: Any = torch.jit.Attribute(0, int)
        self.sums: Any = torch.jit.Attribute([0.5], list[float])

        self.keys: Any = torch.jit.Attribute({0: 1}, dict[int, int])
        self.last: Any = torch.jit.Attribute(torch.zeros(2), torch.Tensor | None)
        self.child = Child()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.sums.append(float(x.sum()))
        self.keys = {self.count: 1}
        self.last = x
        self.child.count += 1
        return x

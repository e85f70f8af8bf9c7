"""Calls that a model with loops makes at other numbers of timesteps than those of its two traces.

A trace of a loop holds no condition: its sizes and its steps are plain numbers. So the code of the model runs at other
lengths that are served, and its calls are counted by line. As many are expected as follow from both traces.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations_with_replacement
from types import CodeType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...config.schema import ServingConfig
from ..eager_call import copy_of, eager_answers
from ..errors import calling_frame, format_source_line, raising_line
from ..exporter.model_attributes import user_file

CalledPlace = tuple[CodeType | None, int, str]
"""Code and line of the model, and the function of torch that it calls."""
Call = tuple[CalledPlace, tuple[Any, ...]]
"""A place, and what its call takes: constants, and the places at which its tensors were made.

Integers may be those of a step, so they are written as what they add to those of the call before.
"""
_CONSTANTS = (float, str, bool, torch.dtype)
_LATER = 3
_FIXED_PARTS = 4
"""Most integers of a list that may have a meaning each, such as the sizes of a tensor."""
_MADE = "_neuron_lstm_made"
_ALL = 96
"""Numbers of timesteps that are run one by one."""
_MOST_STEPS = 20_000
"""Steps of further runs."""
_MOST_PAIRED = 24
"""Numbers of the code, from the smallest, of which sums and products are taken."""
_MOST_MULTIPLES = 16
"""Multiples of a number that are likely ones; those of a small number are too many."""


@dataclass(frozen=True)
class OtherCalls:
    """A number of timesteps at which a model does something else, with the line."""

    timesteps: int
    line: str | None


class _CountedCalls(TorchFunctionMode):
    """Mode that counts the calls of the model's code; `names` are those of its tensors by their identity."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.calls: Counter[Call] = Counter()
        self._names = names
        self._at: Counter[CalledPlace] = Counter()
        self._before: dict[Any, list[int]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame = calling_frame()
        where = (None, 0) if frame is None else (frame.f_code, frame.f_lineno)
        place = (*where, getattr(func, "__name__", ""))
        self.note(place, (*args, *(kwargs or {}).values()))
        result = func(*args, **(kwargs or {}))
        for index, made in enumerate(result if isinstance(result, (tuple, list)) else (result,)):
            if isinstance(made, torch.Tensor) and id(made) not in self._names:
                setattr(made, _MADE, (place, index, self._at[place]))
        self._at[place] += 1
        return result

    def note(self, place: CalledPlace, arguments: Iterable[Any]) -> None:
        """Count a call with these arguments."""
        constants: list[Any] = []
        integers: list[int] = []
        for argument in arguments:
            self._write(argument, constants, integers)
        key = place, tuple(constants)
        before = self._before.get(key, integers)
        self._before[key] = integers
        steps = [b - a if abs(b - a) < 2 else "jump" for a, b in zip(before, integers, strict=False)]
        self.calls[place, (*constants, *steps)] += 1

    def _write(self, argument: Any, constants: list[Any], integers: list[int]) -> None:
        """Write an argument of a call; of a list, the places of its tensors, and whether it has the first and last."""
        if isinstance(argument, torch.Tensor):
            made, index, number = self._made(argument)
            constants.append(made)
            integers += [index, self._at[made] - number]
        elif isinstance(argument, slice):
            self._write((argument.start, argument.stop), constants, integers)
        elif isinstance(argument, (tuple, list)):
            tensors = [self._made(part) for part in argument if isinstance(part, torch.Tensor)]
            constants.append(tuple(dict.fromkeys(made for made, _, _ in tensors)))
            constants += [min(number, _LATER) for _, _, number in tensors[:1]]
            constants += [min(self._at[made] - number, _LATER) for made, _, number in tensors[-1:]]
            for part in argument[:1] if _is_one_of_each_step(argument) else argument:
                if not isinstance(part, torch.Tensor):
                    self._write(part, constants, integers)
        elif isinstance(argument, int) and not isinstance(argument, bool):
            integers.append(argument)
        else:
            constants.append(repr(argument) if isinstance(argument, _CONSTANTS) else type(argument))

    def _made(self, tensor: torch.Tensor) -> tuple[Any, int, int]:
        """Return the place at which a tensor was made, or its name, its number among results, and that of the call."""
        made: tuple[Any, int, int] = getattr(tensor, _MADE, (self._names.get(id(tensor)), 0, 0))
        return made


def _integers_of(value: object) -> Iterator[int]:
    """Return the integers of a value: itself, or those of a tuple, a list, a set or a dictionary."""
    if type(value) is int:
        yield value
    elif isinstance(value, (tuple, list, set, frozenset)):
        yield from chain.from_iterable(map(_integers_of, value))
    elif isinstance(value, dict):
        yield from _integers_of([*value.keys(), *value.values()])


def _is_one_of_each_step(numbers: Sequence[Any]) -> bool:
    """Whether a list has the same integer for each step, as the batch sizes of one packed request."""
    return len(numbers) > _FIXED_PARTS and all(type(number) is int and number == numbers[0] for number in numbers)


class LoopCalls:
    """Calls of a model in eager mode, by the number of timesteps of one request."""

    def __init__(self, model: torch.nn.Module, config: ServingConfig, traced: tuple[int, int]) -> None:
        """Count the calls at the traced numbers of timesteps, which show how many follow at others."""
        self._model, self._config, self._traced = copy_of(model), config, traced
        tensors = (*self._model.named_parameters(), *self._model.named_buffers())
        self._names = {id(tensor): name for name, tensor in tensors}
        self._few, self._many = (self._counted(timesteps) for timesteps in traced)

    def first_other(self, lengths: Iterable[int]) -> OtherCalls | None:
        """Return the first of some lengths at which other calls are made than follow; None without one."""
        return next((other for length in lengths if (other := self._other(length)) is not None), None)

    def lengths(self, longest: int) -> list[int]:
        """Return the numbers of timesteps to run, ascending: all of them where these are not many.

        Else those at the edges of the buckets, beside each number at which the code may branch, and as many others as
        there is time for.
        """
        edges = {length for bucket in self._config.grid.lengths for length in (bucket, bucket + 1)}
        steps, picked = 0, {*range(1, _ALL), *edges, longest}
        for length in chain(self._likely(longest), range(_ALL, longest)):
            if length <= longest and length not in picked and steps + length <= _MOST_STEPS:
                steps += length
                picked.add(length)
        return sorted(length for length in picked if self._traced[1] < length <= longest)

    def _likely(self, longest: int) -> Iterator[int]:
        """Return numbers of timesteps at which the code may branch, the likeliest first.

        It may count its steps by `len(outputs)`, which no trace sees, and compare them with what it computes: its
        numbers, multiples of one, products and sums of two.
        """
        numbers = sorted(number for number in self._numbers() if number <= longest)
        for number in numbers:
            yield from (number, number + 1)
        rare = (number for number in numbers if longest // number <= _MOST_MULTIPLES)
        yield from chain.from_iterable(range(number, longest + 1, number) for number in rare)
        pairs = [*combinations_with_replacement(numbers[:_MOST_PAIRED], 2)]
        yield from (a * b for a, b in pairs)
        yield from (a + b for a, b in pairs)

    def _numbers(self) -> set[int]:
        """Return the integers in the code that ran, in globals that it names, and in the model's attributes."""
        codes = {code for (code, _, _), _ in self._many if code is not None}
        parts = [part for part in self._model.modules() if user_file(sys.modules.get(type(part).__module__))]
        names = {name for code in codes for name in code.co_names}
        files = [vars(sys.modules[module]) for module in {type(part).__module__ for part in parts}]
        named = [variables.get(name) for variables in files for name in names]
        values = chain(*(code.co_consts for code in codes), *(vars(part).values() for part in parts), named)
        return {number for value in values for number in _integers_of(value) if number > 0}

    def _counted(self, timesteps: int) -> Counter[Call]:
        counted = _CountedCalls(self._names)
        with counted:
            results = eager_answers(self._model, self._config, timesteps, torch.tensor([timesteps]))
        for result in results:
            counted.note((None, 0, "return"), ([result],))
        return counted.calls

    def _other(self, timesteps: int) -> OtherCalls | None:
        try:
            calls = self._counted(timesteps)
        except Exception as error:  # noqa: BLE001 - the user's code
            return OtherCalls(timesteps, raising_line(error))
        expected = self._expected(calls, timesteps)
        others = [call for call in (*calls, *expected) if calls[call] != expected.get(call, 0)]
        known = {place for place, _ in self._many}
        others.sort(key=lambda call: call[0] in known)
        return OtherCalls(timesteps, _line(others[0])) if others else None

    def _expected(self, calls: Mapping[Call, int], timesteps: int) -> dict[Call, int]:
        """Return how many calls follow; those after a stride grow together, with the number of steps in `calls`."""
        few, many = self._traced
        strided: tuple[int, int, int] | None = None
        expected = {}
        for key in {**self._few, **self._many}:
            a, b = self._few[key], self._many[key]
            slope, left = divmod(b - a, many - few)
            if left:
                strided = strided or (a, b, calls[key])
                first, second, steps = strided
                slope, left = divmod((b - a) * (steps - first), second - first)
                expected[key] = a + slope if not left else -1
            else:
                expected[key] = a + slope * (timesteps - few)
        return expected


def _line(key: Call) -> str | None:
    code, line, _ = key[0]
    return None if code is None else format_source_line(code.co_filename, line)

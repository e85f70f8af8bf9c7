"""Trace of forward() for one request alone: batch size 1, no padding, a symbolic number of timesteps.

Alone, a request's lengths are known: all of its timesteps. So what a model does with lengths in Python (`tolist()`,
`max()`, sorting, a loop that builds a mask) is followed exactly, packing is the identity, and nothing mixes rows.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sympy import isprime
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.modules import transformer
from torch.utils import _pytree as pytree

from ...backends.exported_program import quiet
from ...config.mask import MaskConfig
from ...config.schema import ServingConfig
from ..errors import explained_export_errors, is_user_file, reject_non_tensors
from ..exporter.export import (
    bind_arguments,
    drop_unused,
    example_tensor,
    export_quietly,
    forward_name,
    replaced_forward,
    with_parameter_names,
)
from ..exporter.mask import in_layout
from ..exporter.model_attributes import register_tensors
from ..exporter.module_file import module_file
from ..exporter.plain_outputs import plain_outputs
from ..loops.cells import STEPS
from ..outputs import vocabularies
from ..packing.packed_sequence import unchecked_packed_states
from ..packing.padded_batch import TracedLengths
from .counted_dimensions import counted_numbers
from .decomposed import decomposed
from .excluded_lengths import lengths_outside
from .fixed_sizes import noted_conversions
from .known_numbers import in_dtype, in_python, known_values, with_known_values
from .overwritten_buffers import drop_overwritten_buffers
from .single_mode import TENSOR_TYPE, SingleRequestMode
from .single_packing import reject_packed_results
from .symbolic_arrays import arrays_of_symbolic_sizes, is_symbolic_array, tensor_of
from .symbolic_quotients import followed_quotients, symbolic_array
from .timestep_branches import Branch, noted_branches
from .uniform_values import as_number, with_uniform_value
from .value_ranges import value_range, with_range
from .written_views import read_what_was_written

_MOST_TIMESTEPS = 23
"""Timesteps to trace with at most, unless the model needs more: enough for the strides of a model."""


RequestForward = Callable[[Any, Sequence[torch.Tensor]], Any]
"""A function of the number of timesteps and of the inputs of one request."""


@dataclass(frozen=True)
class SingleExport:
    """The functional graph of one request, with what the model returns."""

    exported: torch.export.ExportedProgram
    output_tree: pytree.TreeSpec
    lengths_to_compare: frozenset[int]
    """Numbers of timesteps for which the exporter did not say that the graph holds."""
    timesteps: int
    """Number of timesteps that was traced."""
    shortest: int
    """Fewest timesteps for which the graph holds."""
    decided: frozenset[str] = frozenset()
    """Inputs whose declared range decided a branch: the graph holds for values in it only."""
    branches: tuple[Branch, ...] = ()
    """Branches on the number of timesteps that forward() has taken."""
    vocabularies: Mapping[str, int] = field(default_factory=dict)
    """Numbers of ids of the inputs that a `one_hot` takes, which decomposing replaces."""


def export_single(
    model: torch.nn.Module, config: ServingConfig, shortest: int = 1, timesteps: int | None = None
) -> SingleExport:
    """Export forward() for one request of any number of timesteps, `shortest` or more.

    `timesteps` are those to trace with.

    Raises:
        PartialTrace: the graph holds for some numbers of timesteps only.
        LoweringError: the graph depends on data.
    """
    decided: set[str] = set()
    branches: list[Branch] = []
    forward = _request_forward(model, config, decided)
    with noted_branches(branches):
        single = export_request(model, forward, config, forward_name(model), shortest, branches, timesteps)
    return replace(single, decided=frozenset(decided), branches=tuple(branches))


def export_request(
    model: torch.nn.Module,
    forward: RequestForward,
    config: ServingConfig,
    name: str,
    shortest: int,
    branches: Sequence[Branch] = (),
    timesteps: int | None = None,
) -> SingleExport:
    """Export `forward` for one request of any number of timesteps; its tensors are those of `model`.

    `branches` are those that forward() has taken, once it is traced. `timesteps` are those to trace with.

    Raises:
        PartialTrace: the graph holds for some numbers of timesteps only.
        LoweringError: the graph depends on data.
    """
    timesteps = example_timesteps(config, shortest) if timesteps is None else timesteps
    dims = [
        {dim: torch.export.Dim.AUTO for dim, size in enumerate(s.shape) if size == "time"} for s in config.input_specs
    ]
    fixing: list[str] = []
    with noted_conversions(fixing):
        exported, tree = _trace(model, forward, config, timesteps, dims, name)
    with quiet():
        functional = decomposed(exported, STEPS)
    drop_overwritten_buffers(functional)
    read_what_was_written(functional)
    drop_unused(functional)
    shapes = {spec.name.replace(".", "_"): _alone(spec.shape) for spec in config.input_specs}
    outside = lengths_outside(exported, name, shapes, range(shortest, config.longest + 1), branches, fixing)
    return SingleExport(functional, tree, frozenset(outside), timesteps, shortest, vocabularies=vocabularies(exported))


def export_unrolled(model: torch.nn.Module, config: ServingConfig, timesteps: int) -> SingleExport:
    """Export forward() for one request of one number of timesteps, with its loops over them unrolled.

    Raises:
        LoweringError: the graph depends on data.
    """
    decided: set[str] = set()
    forward = _request_forward(model, config, decided)
    exported, tree = _trace(model, forward, config, timesteps, None, forward_name(model))
    with quiet():
        functional = exported.run_decompositions({})
    drop_overwritten_buffers(functional)
    return SingleExport(
        functional, tree, frozenset(), timesteps, timesteps, frozenset(decided), vocabularies=vocabularies(exported)
    )


def _request_forward(model: torch.nn.Module, config: ServingConfig, decided: set[str]) -> RequestForward:
    """Wrap the model's forward() to be called with the tensors of one request and its number of timesteps.

    `decided` gets the names of inputs whose range decides a branch.
    """
    own_forward = model.forward

    def forward(timesteps: Any, inputs: Sequence[torch.Tensor]) -> Any:
        with _tracing(model):
            lengths = with_known_values(torch.full((1,), timesteps, dtype=torch.int64), [timesteps])
            ranged = [
                with_range(tensor, spec.value_range, partial(decided.add, spec.name))
                for tensor, spec in zip(inputs, config.input_specs, strict=True)
            ]
            own = plain_outputs(own_forward(**bind_arguments(config, ranged, lengths, _mask_alone)))
            reject_packed_results(own)
        return own

    return forward


def _mask_alone(mask: MaskConfig, lengths: torch.Tensor, time: Any) -> torch.Tensor:
    """Return the mask of one request, which marks all of its timesteps."""
    real = mask.true_for == "timesteps"
    made = in_layout(mask, torch.full((1, time), real))
    return with_uniform_value(made, as_number(real, made.dtype))


def _trace(
    model: torch.nn.Module,
    forward: RequestForward,
    config: ServingConfig,
    timesteps: int,
    dims: Sequence[Any] | None,
    name: str,
) -> tuple[torch.export.ExportedProgram, pytree.TreeSpec]:
    """Export `forward` for one request; the program, and the structure of what it returns."""
    notes: dict[str, Any] = {}
    specs = config.input_specs

    def flat(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        time = next((t.shape[s.time_dim] for s, t in zip(specs, inputs, strict=True) if s.time_dim is not None), 1)
        leaves, notes["output_tree"] = pytree.tree_flatten(forward(time, inputs))
        reject_non_tensors("forward()", leaves, allow_none=True)
        return tuple(leaf for leaf in leaves if leaf is not None)

    traced = with_parameter_names(flat, [spec.name.replace(".", "_") for spec in specs])
    tensors = [example_tensor(spec, 1, timesteps) for spec in specs]
    with replaced_forward(model, traced), explained_export_errors(name, dynamic_shapes=dims is not None):
        register_tensors(model)
        return export_quietly(model, tensors, dims), notes["output_tree"]


def example_timesteps(config: ServingConfig, shortest: int = 1) -> int:
    """Return the number of timesteps to trace with: `shortest` or more, and one that few strides divide.

    One that a stride divides would be taken for the rule: code that pads to a multiple adds nothing to it. A size of
    1 would be taken for a constant.
    """
    longest = config.grid.lengths[-1]
    most = max(2, min(max(_MOST_TIMESTEPS, 2 * shortest), longest))
    numbers = range(most, max(shortest, 2) - 1, -1)
    return next((n for n in numbers if isprime(n) or (n % 2 == 0 and isprime(n // 2))), most)


def _alone(shape: Sequence[int | str]) -> list[int | str]:
    return [1 if size == "batch" else size for size in shape]


@contextlib.contextmanager
def _tracing(model: torch.nn.Module) -> Iterator[None]:
    """Activate the mode, and replace what Python turns into a fixed number: `len`, `int` and `tolist`."""
    mode = SingleRequestMode()
    with contextlib.ExitStack() as stack:
        for tensor_class in (FunctionalTensor, FakeTensor):
            for method, ours in (("tolist", _listed), ("__array__", _array)):
                original = getattr(tensor_class, method)
                stack.callback(setattr, tensor_class, method, original)
                setattr(tensor_class, method, partialmethod(ours, original))
        original_from_numpy = torch.from_numpy  # no mode sees its calls
        stack.callback(setattr, torch, "from_numpy", original_from_numpy)
        torch.from_numpy = partial(mode.from_numpy, original=original_from_numpy)
        for module in _user_modules(model):
            for name, function in _builtins().items():
                if name not in vars(module):
                    setattr(module, name, function)
                    stack.callback(delattr, module, name)
        for name, dtype in _TENSOR_TYPES.items():
            original_type = getattr(torch, name)
            stack.callback(setattr, torch, name, original_type)
            setattr(torch, name, _tensor_type(original_type, dtype))
        stack.enter_context(followed_quotients())
        stack.enter_context(arrays_of_symbolic_sizes())
        stack.enter_context(unchecked_packed_states())
        stack.callback(setattr, transformer, "_detect_is_causal_mask", transformer._detect_is_causal_mask)
        transformer._detect_is_causal_mask = _is_declared_causal
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        stack.enter_context(mode)
        yield


def _user_modules(model: torch.nn.Module) -> list[Any]:
    """Return the Python modules of the model's classes, and those of other files in their folders."""
    names = {cls.__module__ for part in model.modules() for cls in type(part).__mro__}
    folders = {file.parent for name in names if (file := _user_file(sys.modules.get(name))) is not None}
    return [module for module in list(sys.modules.values()) if (f := _user_file(module)) and f.parent in folders]


def _user_file(module: Any) -> Path | None:
    """Return the file of a Python module that belongs to the model, not to torch, Python or this package."""
    file = module_file(module)
    return Path(file) if file is not None and is_user_file(file) else None


def _length(value: Any) -> Any:
    return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else len(value)


def _extreme(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `max` or `min` that takes the only known number of a tensor."""

    def extreme(*arguments: Any, **options: Any) -> Any:
        known = known_values(arguments[0]) if len(arguments) == 1 else None
        single = known is not None and known.size == 1
        return in_python(known).reshape(-1)[0] if single else original(*arguments, **options)

    return extreme


class _IntegerType(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, int)

    def __call__(cls, value: Any = 0, *more: Any) -> Any:
        if isinstance(value, torch.Tensor) and (known := known_values(value)) is not None:
            whole = in_dtype(known, torch.int64)
            value = (in_python(known) if whole is None else whole).reshape(-1)[0]
        return torch.sym_int(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else int(value, *more)


class _TypeType(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, type)

    def __call__(cls, *arguments: Any) -> Any:
        traced = len(arguments) == 1 and isinstance(arguments[0], (FunctionalTensor, FakeTensor))
        return torch.Tensor if traced else type(*arguments)


class _type(metaclass=_TypeType):  # noqa: N801 - it stands in for `type`
    """`type` that returns torch.Tensor for the tensors of a trace."""


def _is_declared_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Whether a layer of torch's transformers is told that its mask is causal; its values are not compared."""
    return is_causal is True


class _integer(metaclass=_IntegerType):  # noqa: N801 - it stands in for `int`
    """`int` that leaves symbolic sizes symbolic."""


class _RangeType(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, range)

    def __call__(cls, *arguments: Any) -> range:
        start, stop, step = (0, arguments[0], 1) if len(arguments) == 1 else (*arguments, 1)[:3]
        if isinstance(stop, torch.SymInt) and start == 0 and isinstance(step, int) and step > 1:
            chunks = (stop + step - 1) // step
            if chunks <= 1:
                return range(0, step, step)
        return range(*arguments)


class _range(metaclass=_RangeType):  # noqa: N801 - it stands in for `range`
    """`range` that fixes the number of chunks of a size where the first one holds all timesteps, not their number."""


def _builtins() -> dict[str, Any]:
    """Return what stands in for functions of Python in the user's modules while forward() is traced.

    The exporter has its own `max` and `min` while it traces, so these are looked up then.
    """
    return {
        "len": _length,
        "int": _integer,
        "type": _type,
        "range": _range,
        "max": _extreme(max),
        "min": _extreme(min),
    }


_TENSOR_TYPES = {
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
}


def _tensor_type(original: Any, dtype: torch.dtype) -> type:
    """Return a type such as `torch.LongTensor` that takes symbolic numbers."""

    class Type(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, original)

        def __call__(cls, *arguments: Any) -> Any:
            if len(arguments) == 1 and is_symbolic_array(arguments[0]):
                return tensor_of(arguments[0], dtype)
            numbers = np.asarray(arguments[0], dtype=object) if _is_list(arguments) else np.zeros(0)
            known = isinstance(arguments[0], np.ndarray) and arguments[0].dtype == object if arguments else False
            if known or any(isinstance(value, torch.SymInt) for value in numbers.reshape(-1)):
                return torch.tensor(numbers.tolist(), dtype=dtype)
            return original(*arguments)

    return Type(f"_{original.__name__}", (), {TENSOR_TYPE: original})


def _is_list(arguments: Sequence[Any]) -> bool:
    return len(arguments) == 1 and isinstance(arguments[0], (list, tuple, np.ndarray))


def _array(tensor: Any, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return known numbers as an array, as numpy's functions of a tensor ask for them."""
    known = known_values(tensor)
    return original(tensor, *arguments, **options) if known is None else symbolic_array(in_python(known))


def _listed(tensor: Any, original: Callable[[Any], Any]) -> Any:
    known = known_values(tensor)
    if known is not None:
        return in_python(known).tolist()
    if (numbers := counted_numbers(tensor)) is not None:
        return numbers
    # Lengths of sequences within the request are data: only packing may take them.
    inner = tensor.dim() == 1 and value_range(tensor) is not None
    return TracedLengths(tensor, "sequences within a timestep") if inner else original(tensor)

"""Export of the model with symbolic batch and time; PackedSequence code is replaced during tracing."""

from __future__ import annotations

import copy
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partialmethod, wraps
from itertools import product
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.proxy import TracerBase
from torch.nn.utils.rnn import pack_padded_sequence

from ...backends.exported_program import quiet
from ...bucketing.padding import padding_tensor
from ...bucketing.shapes import Axis, TensorSpec
from ...config.forward import MaskConfig
from ...config.schema import NeuronLstmBlock
from ..errors import InputsDoNotFit, LoweringError, at_line, calling_line, is_torch_file, is_user_file, source_suffix
from .arguments import mask_of_lengths, nested_arguments
from .model_attributes import replaced, replaced_each, restored_attributes, with_listed_weights


def bind_arguments(
    config: NeuronLstmBlock,
    tensors: Sequence[torch.Tensor],
    lengths: torch.Tensor,
    make_mask: Callable[[MaskConfig, torch.Tensor, Any], torch.Tensor] = mask_of_lengths,
) -> dict[str, Any]:
    """Build the keyword arguments of one call of the user's forward().

    An input named `state.0` is the first element of a tuple argument `state`; lengths may be an element too.
    """
    named: dict[str, Any] = dict(zip(config.arguments, tensors, strict=True))
    for name, entry in zip(config.arguments, config.inputs.values(), strict=True):
        if entry.packed:
            named[name] = pack_padded_sequence(named[name], lengths, entry.shape[0] == "batch", enforce_sorted=False)
    if config.lengths is not None:
        kind = config.lengths.type
        own = lengths if kind == "tensor" else lengths.numpy() if kind == "numpy" else lengths.tolist()
        named.update(dict.fromkeys(config.lengths.names, own))
    if config.mask is not None:
        pairs = zip(config.input_specs, tensors, strict=True)
        time = next(tensor.shape[spec.time_dim] for spec, tensor in pairs if spec.time_dim is not None)
        named[config.mask.name] = make_mask(config.mask, lengths, time)
    return nested_arguments({**named, **copy.deepcopy(config.model.forward)})  # a call may change its own


def check_forward_signature(model: torch.nn.Module, config: NeuronLstmBlock) -> None:
    """Refuse a configuration whose names differ from the arguments of the model's forward().

    Raises `InputsDoNotFit`: an argument is unknown or missing.
    Raises `LoweringError`: a tuple lacks elements.
    """
    signature = inspect.signature(model.forward)
    tensors = [example_tensor(spec, 1, 1) for spec in config.input_specs]
    names = bind_arguments(config, tensors, torch.ones(1, dtype=torch.int64))
    try:
        signature.bind(**names)
    except TypeError as error:
        raise InputsDoNotFit(
            f"{forward_name(model)}{signature} cannot be called with the arguments the configuration names "
            f"({', '.join(names)}): {error}. List the tensor arguments of forward() under `inputs`, its true lengths "
            "under `lengths`, and constant arguments under `model.forward`."
        ) from error


def forward_name(model: torch.nn.Module) -> str:
    """Return the name of the code that a call of the model runs, as in Tagger.forward or Tagger.infer."""
    own = model.__dict__.get("forward")
    return f"{type(model).__name__}.{getattr(own, '__name__', 'forward')}"


def example_tensor(spec: TensorSpec, batch: int, length: int) -> torch.Tensor:
    """Create a valid tensor of one input: zeros, or the least value of its range."""
    tensor = padding_tensor(spec, length, batch)
    low, high = spec.value_range or (0, 0)
    return tensor if low <= 0 <= high else tensor.fill_(low)


def dynamic_shape(spec: TensorSpec, dims: Mapping[Any, Any]) -> dict[int, Any]:
    """Map the dynamic dimensions of one input to their symbols, as torch.export expects them."""
    return {index: dims[size] for index, size in enumerate(spec.shape) if size in dims}


EXAMPLE_SIZES: dict[Axis, int] = {"batch": 3, "time": 7}
"""Sizes to trace with: different from each other, and unlikely to be a size in the model."""
NEED_CELL = 8
"""Position of `need_cell` among the arguments of neuron_lstm::lstm."""


def with_parameter_names(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Give a function of `*tensors` these parameters: the exporter names the inputs after them."""
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # which `inspect` reads
    return function


def export_quietly(
    module: torch.nn.Module, tensors: Sequence[torch.Tensor], dynamic_shapes: Sequence[Any] | None = None
) -> torch.export.ExportedProgram:
    """Export a module without gradients and without the exporter's warnings about its internals.

    The exporter's cache of shapes computes each new shape twice, to compare: it is for loops that are traced step by
    step, in which shapes come again. Other traces have sizes that are symbols.

    Raises `LoweringError`: the module refuses values, by an operator whose result nothing reads.
    """
    shapes = None if dynamic_shapes is None else tuple(dynamic_shapes)
    cached = torch._dynamo.config.patch(fake_tensor_cache_enabled=shapes is None)
    with torch.no_grad(), quiet(), _lines_of_all_functions(), cached:
        exported = torch.export.export(module, tuple(tensors), dynamic_shapes=shapes, strict=False)
    graphs = (one.graph for one in exported.graph_module.modules() if isinstance(one, torch.fx.GraphModule))
    for node in (node for graph in graphs for node in graph.nodes):
        if str(node.target).startswith("aten._assert_async"):
            raise LoweringError(
                f"the model refuses some values of its inputs{at_line(node)}, which a compiled program cannot do: "
                "remove the check, or choose by torch.where"
            )
    return exported


def drop_unused(exported: torch.export.ExportedProgram) -> None:
    """Remove checks of dtypes and what nothing reads; mark LSTMs whose last cell state is unused."""
    graph = exported.graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):
        graph.erase_node(node)
    graph.eliminate_dead_code()
    for node in graph.nodes:
        if node.target is torch.ops.neuron_lstm.lstm.default and all(user.args[1] != 2 for user in node.users):
            node.update_arg(NEED_CELL, False)
    exported.graph_module.recompile()


@contextmanager
def replaced_forward(model: torch.nn.Module, forward: Any) -> Iterator[None]:
    """Replace forward() of this one model, as a module around it would rename its parameters; restore attributes."""
    with restored_attributes(model):
        model.forward = _as_in_eager_mode(with_listed_weights(model, forward))
        yield


_FLAGS = ("_is_exporting_flag", "_is_compiling_flag")


class _TorchsFlag:
    """A flag of a compiler that is set for torch's own code; other code runs as in eager mode."""

    def __bool__(self) -> bool:
        return is_torch_file(sys._getframe(1).f_code.co_filename)


def _as_in_eager_mode(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Let the compiler's flags be false in the code of a model, and sizes be numbers in its text, as in eager mode."""

    @wraps(forward)
    def as_in_eager_mode(*arguments: Any) -> Any:
        set_flags = [name for name in _FLAGS if getattr(torch.compiler, name, False)]
        with _text_as_in_eager_mode(), replaced_each((torch.compiler, name, _TorchsFlag()) for name in set_flags):
            return forward(*arguments)

    return as_in_eager_mode


_NUMBERS: dict[type, Callable[[Any], Any]] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


def _text_as_in_eager_mode() -> AbstractContextManager[None]:
    """In this context, text that the model's own code makes of sizes has their numbers, and fixes them.

    `str(x.size(1))` would be `s27` in the trace, without a condition. So the size becomes a number, as by `int()`, and
    the trace holds for that number of timesteps; the values of a tensor are not known. Text for torch, for this package
    and for `logging` is left as it is.
    """
    methods = product(("__repr__", "__str__"), (*_NUMBERS, FakeTensor, FunctionalTensor))
    return replaced_each((kind, name, partialmethod(_written, getattr(kind, name))) for name, kind in methods)


def _written(value: Any, original: Callable[..., str], *arguments: Any, **options: Any) -> str:
    if not _is_for_the_model(sys._getframe(1)):
        return original(value, *arguments, **options)
    if (number := _NUMBERS.get(type(value))) is None:
        raise LoweringError(
            f"the model writes a tensor as text{source_suffix(calling_line())}: its values are not known to a program. "
            "Leave that out"
        )
    return str(number(value))


def _is_for_the_model(frame: FrameType | None) -> bool:
    """Whether text is made for the model's own code, perhaps by a library that it calls."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        module, file = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
        if frame.f_code.co_name not in _OF_TENSORS and (module.startswith(_NO_ANSWERS) or is_torch_file(file)):
            return False
        frame = frame.f_back
    return frame is not None


_OF_TENSORS = ("__format__", "__repr__", "__str__", "__torch_function__", "handle_torch_function")
"""Functions of tensors and modes through which text is made for their caller."""
_NO_ANSWERS = (__name__.partition(".")[0], logging.__name__)
"""Packages whose text is for people: errors and logs."""


def _lines_of_all_functions() -> AbstractContextManager[None]:
    """In this context, keep the lines of every function that `forward()` calls, such as other methods."""
    never = property(lambda tracer: False, lambda tracer, value: None)  # also where the exporter sets it
    return replaced(TracerBase, "_record_forward_stack_traces_only", never)

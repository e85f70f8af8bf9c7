"""Export to ONNX, for the engines that read it, and recurrences without lengths for OpenVINO.

Used only while packaging: archives do not contain this file.
"""

from __future__ import annotations

import contextlib
import io
import logging
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial, reduce
from importlib.util import find_spec
from typing import Any

import torch
from torch.export import ExportedProgram

from . import masked
from .error_causes import causes
from .exported_program import quiet
from .exported_tensors import weights_of
from .interface import CompileError, Tensors
from .onnx_recurrences import onnx_lstm, onnx_rnn
from .partitioning.operator_names import operator_name, operators_of, single_operator_program
from .recurrent_operators import is_positions, is_recurrent

_aten = torch.ops.aten
_SMALLEST_LIFTED_CONSTANT = 256
_LARGEST_EXPONENT = 64

# Versions of ONNX that ONNX Runtime 1.19 reads, the last one for Python 3.9: at most opset 21 and IR 10
# (https://onnxruntime.ai/docs/reference/compatibility.html).
_OPSET, _IR = 20, 10

_SCAN = "a loop over timesteps with a cell that is not LSTM, GRU or RNN cannot be written as ONNX"
_POSITIONS = (
    "which of equal elements comes first in torch cannot be written as ONNX (positions of sort, topk, median, mode)"
)
_OPERATOR = re.compile(r"\b(aten|prims|neuron_lstm|torchvision)(?:\.|::)(\w+)")


def missing_packages(engine: str) -> str | None:
    """Return which packages of the exporter and of an engine are not installed; None if all are."""
    missing = [name for name in ("onnx", "onnxscript", engine) if find_spec(name) is None]
    return f"{' and '.join(missing)} not installed: pip install {' '.join(missing)}" if missing else None


def lifted_weights(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the weights that are left out of the graph: all but small constants.

    Shape inference may need the values of small ones.
    """
    return {
        name: tensor
        for name, tensor in weights_of(program).items()
        if name in program.state_dict or tensor.numel() * tensor.element_size() >= _SMALLEST_LIFTED_CONSTANT
    }


def _without_what_onnx_lacks(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Fold projections into plain LSTMs, which ONNX has alone, and write arithmetic of integers by exact operators."""
    table = {
        torch.ops.neuron_lstm.lstm.default: _without_projection,
        _aten.div.Tensor_mode: _divided,
        _aten.sum.default: _summed,
        _aten.sum.dim_IntList: _summed,
        _aten.pow.Tensor_Scalar: _power,
    }
    rewritten: torch.export.ExportedProgram = program.run_decompositions(table)
    return rewritten


def _without_projection(x: Any, lengths: Any, h_0: Any, c_0: Any, *options: Any) -> Any:
    if not masked.is_projected(h_0, c_0):
        return NotImplemented
    return masked.without_projection(torch.ops.neuron_lstm.lstm.default, x, lengths, h_0, c_0, *options)


def _is_whole(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def _divided(x: torch.Tensor, y: torch.Tensor | float, *, rounding_mode: str | None) -> Any:
    """Divide integers: the exporter would divide floats."""
    is_whole = isinstance(y, int) or (isinstance(y, torch.Tensor) and _is_whole(y.dtype))
    if rounding_mode is None or not (is_whole and _is_whole(x.dtype)):
        return NotImplemented
    return torch.floor_divide(x if rounding_mode == "floor" else x - torch.fmod(x, y), y)


def _summed(
    x: torch.Tensor, dims: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Sum integers by running sums: ONNX Runtime's ReduceSum computes in float64."""
    dtype = dtype or torch.int64
    if not (_is_whole(x.dtype) and _is_whole(dtype)) or x.dim() == 0:
        return NotImplemented
    x = x.long()
    for dim in sorted((dim % x.dim() for dim in dims or range(x.dim())), reverse=True):
        zero = x.new_zeros([1 if other == dim else size for other, size in enumerate(x.shape)])  # there may be no other
        x = torch.cat([zero, x], dim).cumsum(dim).narrow(dim, x.shape[dim], 1)
        x = x if keepdim else x.squeeze(dim)
    return x.to(dtype)


def _power(x: torch.Tensor, exponent: float) -> Any:
    """Multiply integers: ONNX Runtime's Pow computes in float64."""
    if not _is_whole(x.dtype) or not _is_written_out(exponent):
        return NotImplemented
    return reduce(operator.mul, [x] * int(exponent))


def _is_written_out(exponent: object) -> bool:
    return isinstance(exponent, int) and 1 <= exponent <= _LARGEST_EXPONENT


def export_onnx(program: torch.export.ExportedProgram) -> Any:
    """Export a program to an ONNX model (a protobuf) with its weights.

    Raises `CompileError`: the exporter does not support an operator, which the message names.
    """
    table: dict[Callable[..., Any], Callable[..., Any]] = {
        torch.ops.neuron_lstm.lstm.default: onnx_lstm,
        torch.ops.neuron_lstm.rnn.default: onnx_rnn,
    }
    if any(_is_scan(node) for node in program.graph.nodes):
        raise CompileError(f"{_SCAN}: use another backend, such as native")
    if any(is_positions(node.target) for node in program.graph.nodes):
        raise CompileError(
            f"{_POSITIONS}: read only the values, as of y.topk(3, 1).values, or use another backend, such as native, "
            "or run it on the CPU: partitioner_config: {}"
        )
    try:
        with _silent():
            rewritten = _without_what_onnx_lacks(program)
            if (reason := next(filter(None, map(_inexact, rewritten.graph.nodes)), None)) is not None:
                raise CompileError(reason)  # noqa: TRY301 - it is told as the exporter's own
            exported = torch.onnx.export(
                rewritten,
                custom_translation_table=table,
                dynamo=True,
                opset_version=_OPSET,
                optimize=False,
                verbose=False,
            )
    except Exception as error:
        raise CompileError(_export_error(error)) from error
    assert exported is not None
    model = exported.model_proto
    model.ir_version = min(model.ir_version, _IR)
    # The origin of each node is nine tenths of the file, and paths of the packaging machine.
    model.graph.ClearField("value_info")
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    return model


def _inexact(node: torch.fx.Node) -> str | None:
    """Return that an operator of integers would be computed in floating point; None if it is not such."""
    value = node.meta.get("val")
    name = str(node.target).partition(".")[2].partition(".")[0]
    if name not in ("pow", "prod", "cumprod") or not isinstance(value, torch.Tensor) or not _is_whole(value.dtype):
        return None
    return f"{name} of integers is computed in floating point"


def _is_scan(node: torch.fx.Node) -> bool:
    return node.target is torch.ops.higher_order.scan


def missing_translation(node: torch.fx.Node) -> str | None:
    """Return which operator of a call of an exported program the exporter cannot translate.

    None if it can.

    Raises `CompileError`: the exporter is not installed.
    """
    if _is_scan(node):
        return _SCAN
    if is_positions(node.target):
        return _POSITIONS
    is_written_out = node.target is _aten.pow.Tensor_Scalar and _is_written_out(node.args[1])
    if not is_written_out and (reason := _inexact(node)) is not None:
        return reason
    registry, table = _exporter()
    if is_recurrent(node.target) or registry.is_registered(node.target):
        return None
    with _silent():
        parts = single_operator_program(node).run_decompositions(table)
    missing = [part for part in operators_of(parts.graph) if not registry.is_registered(part.target)]
    return _no_translation(operator_name(missing[0])) if missing else None


@cache
def _exporter() -> tuple[Any, Any]:
    """The exporter's registry of translations, and its table of decompositions."""
    if find_spec("onnxscript") is None:
        raise CompileError("onnxscript is not installed: it defines which operators can be exported to ONNX")
    from torch.onnx._internal.exporter import _decomp, _registration

    with _silent():
        registry = _registration.ONNXRegistry.from_torchlib()
    known = set(_decomp.get_onnx_implemented_overloads(registry))
    return registry, _decomp.create_onnx_friendly_decomposition_table(known)


def _export_error(error: BaseException) -> str:
    """The innermost reason, and its operator."""
    texts = [text for cause in causes(error) if (text := str(cause).strip())]
    found = next((match for text in texts if (match := _OPERATOR.search(text))), None)
    if found is None:
        return f"the program cannot be written as ONNX: {texts[-1].splitlines()[0] if texts else type(error).__name__}"
    return (
        f"the program cannot be written as ONNX: {_no_translation(f'{found[1]}::{found[2]}')}; use another backend "
        f"(inductor, eager), or write the model without it, or run it on the CPU: "
        f"partitioner_config: {{}}"
    )


def _no_translation(operator: str) -> str:
    return f"the exporter has no translation for the operator {operator}"


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Silence the exporter's progress on standard output, and its remarks about missing packages."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with quiet(), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(disabled)


def externalize_weights(model: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Leave only the name, type and shape of these weights in the graph."""
    import onnx

    for initializer in model.graph.initializer:
        if initializer.name in weights:
            tensor = weights[initializer.name]
            for values in ("raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data"):
                initializer.ClearField(values)
            initializer.data_location = onnx.TensorProto.EXTERNAL
            length = tensor.numel() * tensor.element_size()
            for key, value in (("location", "weights"), ("offset", "0"), ("length", str(length))):
                initializer.external_data.add(key=key, value=value)


def unfolded_weights(model: Any) -> list[str]:
    """Return the external weights that no constant node reads: an engine folds such nodes while loading."""
    constants = {initializer.name for initializer in model.graph.initializer}
    folded: set[str] = set()
    for node in model.graph.node:  # in the order of execution
        if all(name in constants for name in node.input if name):
            constants.update(node.output)
            folded.update(node.input)
    return sorted(external_names(model) - folded)


def external_names(model: Any) -> set[str]:
    """Return the names of the weights that are not in the graph."""
    import onnx

    external = onnx.TensorProto.EXTERNAL
    return {initializer.name for initializer in model.graph.initializer if initializer.data_location == external}


def without_lengths(program: ExportedProgram) -> ExportedProgram:
    """Return the program with masks, and recurrences without lengths, each of one layer in one direction."""
    table = {torch.ops.neuron_lstm.lstm.default: _openvino_lstm, torch.ops.neuron_lstm.rnn.default: _openvino_rnn}
    with quiet():
        decomposed: ExportedProgram = program.run_decompositions(table)
    return decomposed


def _openvino_lstm(x: Any, lengths: Any, h_0: Any, c_0: Any, *options: Any) -> Any:
    if lengths is None and not masked.is_projected(h_0, c_0):
        return NotImplemented
    return masked.fused_lstm(partial(_one_layer, "lstm"), x, lengths, h_0, c_0, *options)


def _openvino_rnn(x: Any, lengths: Any, h_0: Any, weights: Any, cell: str, bias: bool, layers: int, both: bool) -> Any:
    if lengths is None:
        return NotImplemented
    y, (h_n,) = masked.masked_layers(partial(_one_layer, cell), x, lengths, (h_0,), weights, layers, both)
    return y, h_n


def _one_layer(cell: str, x: torch.Tensor, states: Tensors, weights: Tensors) -> tuple[torch.Tensor, Tensors]:
    given = [x.transpose(0, 1), None, *(state[None] for state in states), list(weights)]
    if cell == "lstm":
        y, *finals = torch.ops.neuron_lstm.lstm(*given, len(weights) == 4, 1, False, True)
    else:
        y, *finals = torch.ops.neuron_lstm.rnn(*given, cell, len(weights) == 4, 1, False)
    return y.transpose(0, 1), [final[0] for final in finals]

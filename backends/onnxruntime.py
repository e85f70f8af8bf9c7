"""ONNX Runtime: one graph with native LSTM, GRU and RNN operators that takes every batch and length.

The graph holds no weights. They are handed over before the session is made, so that the engine brings the gates into
its own order once, while loading.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ..bucketing.shapes import Bucket
from . import masked
from .interface import (
    DEFAULTS,
    CompileError,
    CompilerOption,
    CompileSettings,
    LoadedProgram,
    LoadError,
    Precision,
    Requirement,
    Weights,
)
from .signature import Signature, read_signature, signature_of, weights_of, write_signature

_GRAPH = "program.onnx"
_AS_THEY_ARE = "as_they_are.json"
"""The names of the weights that the engine reads in torch's own layout, so in the memory where they are."""

_SMALLEST_LIFTED_CONSTANT = 256

# Where ONNX wants each of torch's gates: i f g o -> i o f g, r z n -> z r n.
_GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}

_KNOWS_SPIN_DURATION = (1, 26)
_SPIN_US = "500"

_OWN = ("neuron_lstm.lstm.default", "neuron_lstm.rnn.default")
_OPERATOR = re.compile(r"\b(aten|prims|neuron_lstm|torchvision)(?:\.|::)(\w+)")


class OnnxRuntime:
    """One program for every bucket."""

    name = "onnxruntime"
    polymorphic = True
    any_shape = True
    precisions: tuple[Precision, ...] = ("float32",)
    options: tuple[CompilerOption, ...] = ()

    def unavailable(self) -> str | None:
        """What is missing of the exporter and the engine."""
        missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
        return f"{' and '.join(missing)} not installed: pip install {' '.join(missing)}" if missing else None

    def requirements(self) -> tuple[Requirement, ...]:
        """Torch for the tensors, and the engine."""
        return (
            Requirement("torch", "torch", torch.__version__.partition("+")[0]),
            Requirement("onnxruntime", "onnxruntime", version("onnxruntime")),
        )

    def host(self) -> Mapping[str, str]:
        """Any machine: the engine compiles while it loads."""
        return {}

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Why an operator cannot be written as ONNX.

        Raises:
            CompileError: the exporter is not installed.
        """
        return missing_translation(node)

    def compile(
        self,
        program: torch.export.ExportedProgram,
        bucket: Bucket | None,
        directory: Path,
        settings: CompileSettings = DEFAULTS,
    ) -> None:
        """Write the ONNX graph without weights.

        Raises:
            CompileError: an operator has no counterpart in ONNX, or the engine lacks it.
        """
        weights = weights_of(program)
        lifted = [name for name in weights if name in program.state_dict or is_large(weights[name])]
        model = export_onnx(program)
        _lift_weights(model, {name: weights[name] for name in lifted})
        (directory / _GRAPH).write_bytes(model.SerializeToString())
        (directory / _AS_THEY_ARE).write_text(json.dumps(_as_they_are(model)), encoding="utf-8")
        whole = signature_of(program, None)
        kept = {name: kind for name, kind in whole.weights.items() if name in _external_names(model)}
        write_signature(Signature(inputs=whole.inputs, weights=kept), directory)
        try:
            run = self.load(directory, weights, {}, threads=1)
            if program.example_inputs is not None:  # some operators lack a dtype, which shows when they run
                run(program.example_inputs[0])
        except Exception as error:
            raise CompileError(f"ONNX Runtime does not take this program: {error.__cause__ or error}") from error

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Make the one session.

        Raises:
            LoadError: the engine is missing or refuses the graph, or the weights are others.
        """
        signature = read_signature(directory)
        real = signature.pick_weights(weights)
        # Torch only copies here, and its threads would spin for more work beside the engine's own.
        torch.set_num_threads(1)
        try:
            return _Program(signature, *_session(directory, real, threads))
        except Exception as error:
            raise LoadError(
                f"this host's ONNX Runtime cannot load {directory}: {error}; install the version the program was "
                f"packaged with, or package the model again"
            ) from error


def _engine() -> Any:
    """The engine's module.

    Since 1.29 it reports to its maker from the moment it is imported, and keeps an id in the home directory for that. A
    server does so only if its owner asks for it.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def _session(directory: Path, weights: Weights, threads: int) -> tuple[Any, dict[str, Any]]:
    """The session, and the engine's views of the weights, whose memory it reads."""
    onnxruntime = _engine()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what fails is raised; it need not be printed as well
    options.intra_op_num_threads = threads
    # Threads spin for work while a request is computed, and between the pieces of one (a short piece takes two thirds
    # of the time), but not for long: several workers share the cores, and a spinning one takes them from the others.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    if _version() >= _KNOWS_SPIN_DURATION:
        options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
    else:
        options.add_session_config_entry("session.force_spinning_stop", "1")
    view = onnxruntime.OrtValue.ortvalue_from_numpy
    values = {name: view(tensor.detach().numpy()) for name, tensor in weights.items()}
    # What is known while the session is made is put into the engine's own order once and for all, and copied; what is
    # handed over as an initializer besides is left where it is.
    options.add_external_initializers(list(values), list(values.values()))
    for name in json.loads((directory / _AS_THEY_ARE).read_text(encoding="utf-8")):
        options.add_initializer(name, values[name])
    graph = str(directory / _GRAPH)
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"]), values


def _version() -> tuple[int, ...]:
    """Major and minor."""
    return tuple(int(part) for part in version("onnxruntime").split(".")[:2])


class _Program:
    """The session as a program. `kept` must live as long as it does."""

    def __init__(self, signature: Signature, session: Any, kept: Mapping[str, Any]) -> None:
        self.signature, self.session, self.kept = signature, session, kept
        # The exporter may leave out inputs that nothing reads: go by name.
        taken = {node.name for node in session.get_inputs()}
        self.names = [name if name in taken else None for name in signature.inputs]
        self.outputs = [node.name for node in session.get_outputs()]

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """One call."""
        self.signature.check_inputs(inputs)
        return [torch.from_numpy(output) for output in self.session.run(self.outputs, self._feeds(inputs))]

    def chain(
        self, buckets: Sequence[Bucket], calls: Sequence[list[torch.Tensor]], carried: list[torch.Tensor]
    ) -> Sequence[Sequence[torch.Tensor]]:
        """Several calls in a row, with nothing between them but the views of the rows that go on."""
        for bucket, call in zip(buckets, calls, strict=True):
            self.signature.check_inputs([*call, *(value[: bucket.batch] for value in carried)])
        names = self.names[len(self.names) - len(carried) :]
        feeds = [self._feeds(call) for call in calls]
        values = [value.detach().numpy() for value in carried]
        given = []
        for bucket, feed in zip(buckets, feeds, strict=True):
            for name, value in zip(names, values, strict=True):
                if name is not None:
                    feed[name] = value[: bucket.batch]
            given.append(self.session.run(self.outputs, feed))
            values = given[-1][len(self.outputs) - len(carried) :]
        return [[torch.from_numpy(output) for output in outputs] for outputs in given]

    def _feeds(self, inputs: Sequence[torch.Tensor]) -> dict[str, Any]:
        return {name: tensor.detach().numpy() for name, tensor in zip(self.names, inputs, strict=False) if name}


def is_large(tensor: torch.Tensor) -> bool:
    """Whether a constant is left out of the graph. Shape inference may want to see the values of small ones."""
    return tensor.numel() * tensor.element_size() >= _SMALLEST_LIFTED_CONSTANT


def _without_projections(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """ONNX knows no projected LSTM: fold the projections into plain ones."""
    operator = torch.ops.neuron_lstm.lstm.default

    def decomposed(x: Any, lengths: Any, h_0: Any, c_0: Any, *options: Any) -> Any:
        if not masked.is_projected(h_0, c_0):
            return NotImplemented
        return masked.without_projection(operator, x, lengths, h_0, c_0, *options)

    folded: torch.export.ExportedProgram = program.run_decompositions({operator: decomposed})
    return folded


def export_onnx(program: torch.export.ExportedProgram) -> Any:
    """The ONNX model (a protobuf), with weights.

    Raises:
        CompileError: names the operator that the exporter does not know.
    """
    table: dict[Callable[..., Any], Callable[..., Any]] = {
        torch.ops.neuron_lstm.lstm.default: _lstm,
        torch.ops.neuron_lstm.rnn.default: _rnn,
    }
    try:
        with _quiet():
            exported = torch.onnx.export(
                _without_projections(program),
                custom_translation_table=table,
                dynamo=True,
                optimize=False,
                verbose=False,
            )
    except Exception as error:
        raise CompileError(_refusal(error)) from error
    assert exported is not None
    model = exported.model_proto
    _drop_remarks(model)
    return model


def missing_translation(node: torch.fx.Node) -> str | None:
    """Which operator of a call of an exported program the exporter has no translation for; None where it has all.

    Raises:
        CompileError: the exporter is not installed.
    """
    from .partitioning.operator_support import single_operator_program
    from .partitioning.partition import operator_name, operators_of

    registry, table = _exporter()
    if str(node.target) in _OWN or registry.is_registered(node.target):
        return None
    with _quiet():
        parts = single_operator_program(node).run_decompositions(table)
    missing = [part for part in operators_of(parts.graph) if not registry.is_registered(part.target)]
    return _no_translation(operator_name(missing[0])) if missing else None


@cache
def _exporter() -> tuple[Any, Any]:
    """What it translates as it is, and what it takes apart first."""
    if find_spec("onnxscript") is None:
        raise CompileError("onnxscript is not installed, which knows what can be written as ONNX")
    from torch.onnx._internal.exporter import _decomp, _registration

    with _quiet():  # about packages that it looked for
        registry = _registration.ONNXRegistry.from_torchlib()
    known = set(_decomp.get_onnx_implemented_overloads(registry))
    return registry, _decomp.create_onnx_friendly_decomposition_table(known)


def _refusal(error: BaseException) -> str:
    """The innermost reason, and the operator it is about."""
    texts = [text for cause in _causes(error) if (text := str(cause).strip())]
    found = next((match for text in texts if (match := _OPERATOR.search(text))), None)
    if found is None:
        return f"the program cannot be written as ONNX: {texts[-1].splitlines()[0] if texts else type(error).__name__}"
    return (
        f"the program cannot be written as ONNX: {_no_translation(f'{found[1]}::{found[2]}')}; use another backend "
        f"(inductor, eager), or write the model without it, or have it run on the CPU beside the engine: "
        f"partitioner_config: {{}}"
    )


def _no_translation(operator: str) -> str:
    return f"the exporter has no translation for the operator {operator}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's progress on standard output and its remarks about packages it looked for."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _drop_remarks(model: Any) -> None:
    """Without where each node came from: nine tenths of the file, and paths of the machine it was written on."""
    model.graph.ClearField("value_info")
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")


def _lift_weights(model: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Leave only name, type and shape of the weights in the graph."""
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


def _as_they_are(model: Any) -> list[str]:
    """The weights that no node with nothing but constants reads: the engine would compute such a node while loading."""
    constants = {initializer.name for initializer in model.graph.initializer}
    folded: set[str] = set()
    for node in model.graph.node:  # in the order of execution
        if all(name in constants for name in node.input if name):
            constants.update(node.output)
            folded.update(node.input)
    return sorted(_external_names(model) - folded)


def _external_names(model: Any) -> set[str]:
    import onnx

    external = onnx.TensorProto.EXTERNAL
    return {initializer.name for initializer in model.graph.initializer if initializer.data_location == external}


def _lstm(
    x: Any,
    lengths: Any,
    h_0: Any,
    c_0: Any,
    weights: Sequence[Any],
    bias: bool,
    layers: int,
    bidirectional: bool,
    need_cell: bool,
) -> tuple[Any, Any, Any]:
    """The abstract operator as ONNX operators, called by the exporter."""
    y, h_n, c_n = _layers("lstm", x, lengths, (h_0, c_0), weights, layers, bidirectional)
    return y, h_n, c_n


def _rnn(
    x: Any, lengths: Any, h_0: Any, weights: Sequence[Any], cell: str, bias: bool, layers: int, bidirectional: bool
) -> tuple[Any, Any]:
    """The abstract operator as ONNX operators, called by the exporter."""
    y, h_n = _layers(cell, x, lengths, (h_0,), weights, layers, bidirectional)
    return y, h_n


def _layers(
    cell: str, x: Any, lengths: Any, states: Sequence[Any], weights: Sequence[Any], layers: int, bidirectional: bool
) -> list[Any]:
    """One native operator per layer: y[B, T, D*H], then each state after its own row's last step [L*D, B, H]."""
    op = _opset()

    directions = 2 if bidirectional else 1
    size = len(weights) // layers
    steps = None if lengths is None else op.Cast(lengths, to=6)  # int32
    x = op.Transpose(x, perm=[1, 0, 2])
    begins = [_cut(state, layers) for state in states]
    finals = []
    for index in range(layers):
        parts = _in_onnx_order(cell, weights[index * size : (index + 1) * size], directions)
        rows = [begin[index] for begin in begins]
        y, *final = _native(cell, x, parts, steps, rows, bidirectional, int(states[0].shape[2]))
        x = _join_directions(y, directions)
        finals.append(final)
    return [op.Transpose(x, perm=[1, 0, 2]), *(_together(kind) for kind in zip(*finals, strict=True))]


def _cut(state: Any, layers: int) -> Sequence[Any]:
    """The states [L*D, B, H] of each layer."""
    return [state] if layers == 1 else _opset().Split(state, num_outputs=layers, axis=0)


def _together(states: Sequence[Any]) -> Any:
    """The way back."""
    return states[0] if len(states) == 1 else _opset().Concat(*states, axis=0)


def _join_directions(y: Any, directions: int) -> Any:
    """[T, D, B, H] -> [T, B, D*H]; nothing moves where there is one direction."""
    op = _opset()
    if directions == 1:
        return op.Squeeze(y, [1])
    return op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, -1])


def _native(
    cell: str, x: Any, parts: Sequence[Any], steps: Any, states: Sequence[Any], bidirectional: bool, hidden: int
) -> Any:
    """ONNX's own operator: (Y, Y_h) or (Y, Y_h, Y_c). It stops each row at its own last step by itself."""
    op = _opset()

    common = {"hidden_size": hidden, "direction": "bidirectional" if bidirectional else "forward"}
    if cell == "lstm":
        return op.LSTM(x, *parts, steps, *states, **common)
    if cell == "gru":
        # torch applies the reset gate to the whole of W_hn h + b_hn.
        return op.GRU(x, *parts, steps, *states, linear_before_reset=1, **common)
    activation = {"rnn_tanh": "Tanh", "rnn_relu": "Relu"}[cell]
    return op.RNN(x, *parts, steps, *states, activations=[activation] * (2 if bidirectional else 1), **common)


def _in_onnx_order(cell: str, weights: Sequence[Any], directions: int) -> tuple[Any, Any, Any]:
    """W [D, G*H, F], R [D, G*H, H] and B [D, 2*G*H] (None without bias); the engine computes them once, at load."""
    op = _opset()

    each = len(weights) // directions
    groups = [[_gates(cell, weight) for weight in weights[d * each : (d + 1) * each]] for d in range(directions)]
    w, r = (op.Concat(*(op.Unsqueeze(group[i], [0]) for group in groups), axis=0) for i in (0, 1))
    if each == 2:
        return w, r, None
    biases = [op.Unsqueeze(op.Concat(group[2], group[3], axis=0), [0]) for group in groups]
    return w, r, op.Concat(*biases, axis=0)


def _opset() -> Any:
    """ONNX's operators; untyped, because the exporter calls with values of its own and with plain numbers alike."""
    from onnxscript import opset18

    return opset18


def _gates(cell: str, weight: Any) -> Any:
    """The gates of a weight or bias, stacked along its first dimension, in ONNX's order."""
    op = _opset()

    order = _GATES[cell]
    hidden = int(weight.shape[0]) // len(order)
    parts = [op.Slice(weight, [gate * hidden], [(gate + 1) * hidden], [0]) for gate in order]
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=0)

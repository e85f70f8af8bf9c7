"""ONNX Runtime engine: one graph with ONNX's LSTM, GRU and RNN operators, and dynamic shapes.

The graph holds no weights. They are passed before the session is created, so that the engine reorders the gates once,
while loading.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..bucketing.shapes import Bucket
from .interface import DEFAULTS, CompileSettings, LoadedProgram, Weights
from .onnx_engine import GRAPH, OnnxEngine, write_graph
from .signature import Signature
from .versions import release

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_AS_THEY_ARE = "as_they_are.json"
"""Names of the weights that the engine reads in torch's layout, so in place."""


class OnnxRuntime(OnnxEngine):
    """One program for every bucket, in any shapes."""

    name = "onnxruntime"
    product = "ONNX Runtime"
    lowest = "1.19.2"
    any_shape = True

    def compile(
        self, program: ExportedProgram, bucket: Bucket | None, directory: Path, settings: CompileSettings = DEFAULTS
    ) -> None:
        """Write the ONNX graph without weights."""
        from .onnx_export import export_onnx, external_names, externalize_weights, lifted_weights, unfolded_weights

        model = export_onnx(program)
        externalize_weights(model, lifted_weights(program))
        (directory / _AS_THEY_ARE).write_text(json.dumps(unfolded_weights(model)), encoding="utf-8")
        write_graph(model, program, external_names(model), directory)
        self.try_program(program, directory)

    def load_graph(self, directory: Path, signature: Signature, weights: Weights, threads: int) -> LoadedProgram:
        """Create the session."""
        return _Program(signature, *_session(directory, weights, threads))


def _engine() -> Any:
    """The engine's module, imported without its telemetry.

    Since 1.29 it reports to its maker on import, and keeps an id in the home directory for that. A server must do so
    only if its owner asks for it.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def _session(directory: Path, weights: Weights, threads: int) -> tuple[Any, dict[str, Any]]:
    """The session, and the engine's views of the weights, which it reads in place."""
    onnxruntime = _engine()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # failures are raised; they need not be printed as well
    options.intra_op_num_threads = threads
    # Threads spin for work during a request and between its chunks (a short chunk then takes two thirds of the time),
    # but not for long: several workers share the cores, and a spinning worker takes them from the others.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    if release(version("onnxruntime")) >= (1, 26):  # it knows the option
        options.add_session_config_entry("session.intra_op.spin_duration_us", "500")
    else:
        options.add_session_config_entry("session.force_spinning_stop", "1")
    view = onnxruntime.OrtValue.ortvalue_from_numpy
    values = {name: view(tensor.detach().numpy()) for name, tensor in weights.items()}
    # External initializers are copied into the engine's own layout once; those that are added as initializers as well
    # are read in place.
    options.add_external_initializers(list(values), list(values.values()))
    for name in json.loads((directory / _AS_THEY_ARE).read_text(encoding="utf-8")):
        options.add_initializer(name, values[name])
    return onnxruntime.InferenceSession(str(directory / GRAPH), options, providers=["CPUExecutionProvider"]), values


class _Program:
    """A session as a loaded program. `kept` are tensors that must live as long as the session."""

    def __init__(self, signature: Signature, session: Any, kept: Mapping[str, Any]) -> None:
        self.signature, self.session, self.kept = signature, session, kept
        # The exporter may drop unused inputs: match by name.
        taken = {node.name for node in session.get_inputs()}
        self.names = [name if name in taken else None for name in signature.inputs]
        self.outputs = [node.name for node in session.get_outputs()]
        # In 1.19 such an output is the memory of the input, and may outlive it.
        self.passed_on = [index for index, name in enumerate(self.outputs) if name in taken]

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Run one call."""
        self.signature.check_inputs(inputs)
        return [torch.from_numpy(output) for output in self._run(self._feeds(inputs))]

    def chain(
        self, buckets: Sequence[Bucket], calls: Sequence[list[torch.Tensor]], carried: list[torch.Tensor]
    ) -> Sequence[Sequence[torch.Tensor]]:
        """Run several calls in sequence; between them only views of the active rows are made."""
        for bucket, call in zip(buckets, calls):
            self.signature.check_inputs([*call, *(value[: bucket.batch] for value in carried)])
        names = self.names[len(self.names) - len(carried) :]
        feeds = [self._feeds(call) for call in calls]
        values = [value.detach().numpy() for value in carried]
        given = []
        for bucket, feed in zip(buckets, feeds):
            for name, value in zip(names, values):
                if name is not None:
                    feed[name] = value[: bucket.batch]
            given.append(self._run(feed))
            values = given[-1][len(self.outputs) - len(carried) :]
        return [[torch.from_numpy(output) for output in outputs] for outputs in given]

    def _run(self, feeds: Mapping[str, Any]) -> list[Any]:
        outputs: list[Any] = self.session.run(self.outputs, feeds)
        for index in self.passed_on:
            outputs[index] = outputs[index].copy()
        return outputs

    def _feeds(self, inputs: Sequence[torch.Tensor]) -> dict[str, Any]:
        return {name: tensor.detach().numpy() for name, tensor in zip(self.names, inputs) if name}

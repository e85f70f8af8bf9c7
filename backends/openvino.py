"""OpenVINO engine: one graph with dynamic shapes, in float32 or bfloat16.

Its LSTM silently ignores lengths that are not known at compilation. So the program masks padding itself (`masked.py`),
and OpenVINO's operators see batches without lengths. A new shape costs some milliseconds and most of a megabyte, so
batches are planned in the shapes of the grid.

The graph holds no weights: they are inputs, and become constants over the user's own memory before it is compiled.
OpenVINO copies weights that it reorders or converts, and reads the others in place.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..bucketing.shapes import Bucket
from .interface import DEFAULTS, CompileError, CompileSettings, LoadedProgram, LoadError, Precision, Weights
from .onnx_engine import GRAPH, OnnxEngine, write_graph
from .signature import Signature, signature_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_PRECISION = "precision.json"
_HINTS: Mapping[str, str] = {"float32": "f32", "bfloat16": "bf16"}
_ROUNDING: Mapping[str, float] = {"float32": 1e-3, "bfloat16": 0.1}


class OpenVino(OnnxEngine):
    """One program for every bucket, in the shapes of the grid."""

    name = "openvino"
    product = "OpenVINO"
    lowest = "2025.3.0"
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    largest_integer = 2**24
    """Its integers have 32 bits, and its sums, maxima and remainders of them are those of float32."""

    def compile(
        self, program: ExportedProgram, bucket: Bucket | None, directory: Path, settings: CompileSettings = DEFAULTS
    ) -> None:
        """Write the ONNX graph without weights. The graph, its inputs and outputs are float32 in any precision."""
        precision = settings.precision
        if reason := _unsupported_precision(precision):
            raise CompileError(reason)
        from .onnx_export import export_onnx, lifted_weights, without_lengths

        values = (node.meta.get("val") for node in program.graph.nodes)
        if any(isinstance(value, torch.Tensor) and value.dtype is torch.float64 for value in values):
            raise CompileError("OpenVINO computes float64 in float32: use another backend, such as native")
        model = export_onnx(without_lengths(program))
        (directory / _PRECISION).write_text(json.dumps({"precision": precision}), encoding="utf-8")
        write_graph(model, program, _lift_weights(model, lifted_weights(program)), directory)
        self.try_program(program, directory, lambda outputs: _reject_wrong_outputs(program, outputs, precision))

    def load_graph(self, directory: Path, signature: Signature, weights: Weights, threads: int) -> LoadedProgram:
        """Compile the graph for this processor."""
        precision = json.loads((directory / _PRECISION).read_text(encoding="utf-8"))["precision"]
        if reason := _unsupported_precision(precision):
            raise LoadError(f"{reason}. Package the model again without precision: {precision}, or on such a host")
        return _run(signature, *_compiled(directory / GRAPH, weights, _HINTS[precision], threads))


def _reject_wrong_outputs(program: ExportedProgram, answers: Sequence[torch.Tensor], precision: Precision) -> None:
    """Compare a program with torch if it has fixed sizes, because the engine was seen to compute wrong outputs.

    It happened with several GRUs in one program, by 1 and more, with OpenVINO 2026.4; with dynamic sizes it did not.

    Raises `ValueError`: the outputs differ by more than rounding.
    """
    shapes = [kind.shape for kind in signature_of(program, None).inputs.values()]
    if program.example_inputs is None or any(isinstance(size, str) for shape in shapes for size in shape):
        return
    with torch.no_grad():
        own = program.module()(*program.example_inputs[0])
    bound = _ROUNDING[precision]
    for ours, theirs in zip(answers, own):
        if theirs.is_floating_point() and not torch.allclose(ours, theirs, atol=bound, rtol=bound, equal_nan=True):
            raise ValueError("at fixed sizes its outputs differ from the program's; use another backend")


def _engine() -> Any:
    """The engine's module, imported without its telemetry.

    On import the distribution reports to its maker, through an optional package that keeps an id in the home directory.
    A server must do so only if its owner asks for it.
    """
    hides_telemetry = "openvino_telemetry" not in sys.modules
    if hides_telemetry:
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # the import system raises ImportError
    try:
        import openvino
    finally:
        if hides_telemetry:
            del sys.modules["openvino_telemetry"]
    return openvino


def _core() -> Any:
    """An engine for one program: it caches weights by address, so it must not outlive them.

    An engine shared by two programs crashed if the weights of the second had the addresses of the first. A thread that
    ends loads it: on processors with AMX, OpenVINO gives the loading thread another stack for signals, and frees that
    with the engine. If this happened in another thread, the next signal, such as Ctrl-C, killed the process.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_loaded_core).result()


def _loaded_core() -> Any:
    core = _engine().Core()
    core.get_property("CPU", "FULL_DEVICE_NAME")  # loads what computes on the CPU
    return core


def _unsupported_precision(precision: str) -> str | None:
    """A reason if this processor does not support the precision: the engine would silently use float32."""
    if precision == "float32" or "BF16" in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        return None
    return f"this processor has no instructions for {precision} (as avx512_bf16 and amx_bf16 are on x86-64)"


def _compiled(graph: Path, weights: Weights, hint: str, threads: int) -> tuple[Any, Sequence[Any]]:
    """The compiled model, and the weights it reads, which must live as long as it does."""
    core = _core()
    model = core.read_model(str(graph))
    kept = _fill_in(model, weights)
    options = {
        "INFERENCE_PRECISION_HINT": hint,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        # Several workers share the cores, and each would pin itself to the same ones.
        "ENABLE_CPU_PINNING": False,
    }
    return core.compile_model(model, "CPU", options), kept


def _fill_in(model: Any, weights: Weights) -> list[Any]:
    """Replace the inputs that are weights by constants over the same memory."""
    constant = _engine().op.Constant
    kept = []
    for parameter in model.get_parameters():
        output = parameter.output(0)
        name = next((name for name in output.get_names() if name in weights), None)
        if name is not None:
            kept.append(constant(weights[name].detach().numpy(), shared_memory=True))
            for reader in output.get_target_inputs():
                reader.replace_source_output(kept[-1].output(0))
            model.remove_parameter(parameter)
    return kept


def _run(signature: Signature, compiled: Any, kept: Sequence[Any]) -> LoadedProgram:
    # The exporter may drop unused inputs: match by name.
    taken = {name: index for index, port in enumerate(compiled.inputs) for name in port.get_names()}
    places = [taken.get(name) for name in signature.inputs]
    request = compiled.create_infer_request()
    outputs = range(len(compiled.outputs))

    def run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        signature.check_inputs(inputs)
        assert kept is not None
        given = zip(places, inputs)
        feeds = {place: tensor.detach().contiguous().numpy() for place, tensor in given if place is not None}
        request.infer(feeds, share_inputs=True)
        # The engine reuses its buffers.
        return [torch.from_numpy(request.get_output_tensor(index).data.copy()) for index in outputs]

    return run


def _lift_weights(model: Any, weights: Weights) -> set[str]:
    """Turn the weights in the graph into inputs, and return their names."""
    import onnx

    held = [initializer for initializer in model.graph.initializer if initializer.name in weights]
    for initializer in held:
        kind = onnx.helper.make_tensor_value_info(initializer.name, initializer.data_type, list(initializer.dims))
        model.graph.initializer.remove(initializer)
        model.graph.input.append(kind)
    return {kind.name for kind in model.graph.input} & set(weights)

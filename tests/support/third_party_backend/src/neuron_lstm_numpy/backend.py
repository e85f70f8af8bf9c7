"""The engine: a program becomes a list of calls in JSON, and numpy runs it."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchserve_neuron_lstm.backends.interface import (
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
from torchserve_neuron_lstm.backends.signature import dtype_name, read_signature, signature_of, write_signature
from torchserve_neuron_lstm.bucketing.shapes import Bucket

from .operators import OPERATORS

_CHECKS = "aten._assert_tensor_metadata.default"
"""Left out: the signature says the same and is checked at each call."""


class NumpyEngine:
    """One program for every shape."""

    name = "numpy"
    polymorphic = True
    any_shape = True
    precisions: tuple[Precision, ...] = ("float32",)
    options: tuple[CompilerOption, ...] = ("compiler_args",)

    def unavailable(self) -> str | None:
        """Nothing to look for: numpy is installed with this distribution."""
        return None

    def requirements(self) -> tuple[Requirement, ...]:
        """This distribution too: an archive does not carry it."""
        return (
            Requirement("torch", "torch", torch.__version__.partition("+")[0]),
            Requirement("neuron-lstm-numpy", "neuron_lstm_numpy", version("neuron-lstm-numpy")),
        )

    def host(self) -> Mapping[str, str]:
        """Programs are text, but whoever made them looked at this machine's answers."""
        return {"byteorder": sys.byteorder}

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Return the reason why numpy cannot take this call, or None."""
        name = _name(node)
        if name not in OPERATORS and name != _CHECKS:
            return f"numpy has no {name}"
        if name == "neuron_lstm.lstm.default" and _width(node.args[2]) != _width(node.args[3]):
            return "numpy has no LSTM with a projection"
        return None

    def compile(
        self,
        program: torch.export.ExportedProgram,
        bucket: Bucket | None,
        directory: Path,
        settings: CompileSettings = DEFAULTS,
    ) -> None:
        """Write the calls. `compiler_args: --double` has them computed in float64."""
        if unknown := set(settings.args) - {"--double"}:
            raise CompileError(f"numpy knows the argument --double alone, not {', '.join(sorted(unknown))}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about its internals
            plain = program.run_decompositions({})
        nodes = [node for node in plain.graph.nodes if node.op == "call_function"]
        if refused := [reason for node in nodes if (reason := self.refusal(node)) is not None]:
            raise CompileError("; ".join(dict.fromkeys(refused)))
        kept, answers = plain.graph_signature, plain.graph.output_node().args[0]
        written = {
            "double": "--double" in settings.args,
            "weights": {
                **kept.inputs_to_parameters,
                **kept.inputs_to_buffers,
                **kept.inputs_to_lifted_tensor_constants,
            },
            "calls": [_written(node) for node in nodes if _name(node) != _CHECKS],
            "outputs": [_reference(node) for node in answers],
            "dtypes": [dtype_name(node.meta["val"]) for node in answers],
        }
        (directory / "program.json").write_text(json.dumps(written))
        write_signature(signature_of(program, bucket), directory)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Read the calls, over the memory of the weights."""
        if host.get("byteorder", sys.byteorder) != sys.byteorder:
            raise LoadError(f"packaged where numbers are {host['byteorder']}-endian: package the model again, here")
        signature = read_signature(directory)
        program = json.loads((directory / "program.json").read_text())
        real = signature.pick_weights(weights)
        wide = np.float64 if program["double"] else None
        values = {node: _in(wide, real[name].detach().numpy()) for node, name in program["weights"].items()}

        def run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
            signature.check_inputs(inputs)
            known = dict(values)
            for name, tensor in zip(signature.inputs, inputs, strict=True):
                known[name] = _in(wide, tensor.detach().numpy())
            for call in program["calls"]:
                known[call["name"]] = OPERATORS[call["operator"]](*_meant(call["args"], known), **call["options"])
            answers = zip(_meant(program["outputs"], known), program["dtypes"], strict=True)
            return [torch.from_numpy(np.array(answer, dtype, order="C")) for answer, dtype in answers]

        return run


def _name(node: torch.fx.Node) -> str:
    target = node.target
    return str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", str(target))


def _width(state: Any) -> int:
    return int(state.meta["val"].shape[2])


def _in(dtype: type[np.floating[Any]] | None, value: Any) -> Any:
    """In this precision, where it is a floating-point number and one is asked for."""
    return value if dtype is None or value.dtype.kind != "f" else value.astype(dtype)


def _written(node: torch.fx.Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "operator": _name(node),
        "args": [_reference(arg) for arg in node.args],
        "options": {key: _reference(arg) for key, arg in node.kwargs.items() if key == "dtype"},
    }


def _reference(arg: Any) -> Any:
    """An argument as JSON has it: another call's answer by its name, a dtype by its own."""
    if isinstance(arg, torch.fx.Node):
        return {"answer": arg.name}
    if isinstance(arg, torch.dtype):
        return str(arg).removeprefix("torch.")
    return [_reference(one) for one in arg] if isinstance(arg, (list, tuple)) else arg


def _meant(written: Any, known: Mapping[str, Any]) -> Any:
    """The way back."""
    if isinstance(written, list):
        return [_meant(one, known) for one in written]
    return known[written["answer"]] if isinstance(written, dict) else written

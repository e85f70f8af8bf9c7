"""The engine: a program becomes a list of calls in JSON, and numpy runs it."""

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
    Backend,
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
"""Operator that is left out: `Signature.check_inputs` makes its checks at each call."""


class NumpyEngine(Backend):
    """One program for every shape."""

    name = "numpy"
    polymorphic = True
    any_shape = True
    precisions: tuple[Precision, ...] = ("float32",)
    options: tuple[CompilerOption, ...] = ("compiler_args",)

    def requirements(self) -> tuple[Requirement, ...]:
        """List torch and this distribution, which an archive does not contain."""
        return (
            Requirement("torch", "torch", torch.__version__.partition("+")[0]),
            Requirement("neuron-lstm-numpy", "neuron_lstm_numpy", version("neuron-lstm-numpy")),
        )

    def host(self) -> Mapping[str, str]:
        """Return this machine's byte order, which `load` compares with that of its host."""
        return {"byteorder": sys.byteorder}

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Return the reason why numpy does not support this call, or None."""
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
        """Write the calls as JSON. With `compiler_args: --double`, `load` computes them in float64."""
        if unknown := set(settings.args) - {"--double"}:
            raise CompileError(f"numpy supports only the argument --double, not {', '.join(sorted(unknown))}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about its internals
            plain = program.run_decompositions({})
        nodes = [node for node in plain.graph.nodes if node.op == "call_function"]
        if refused := [reason for node in nodes if (reason := self.refusal(node)) is not None]:
            raise CompileError("; ".join(dict.fromkeys(refused)))
        names, outputs = plain.graph_signature, plain.graph.output_node().args[0]
        owned = {**names.inputs_to_parameters, **names.inputs_to_buffers}
        written = {
            "double": "--double" in settings.args,
            "weights": {**owned, **names.inputs_to_lifted_tensor_constants},
            "calls": [_call(node) for node in nodes if _name(node) != _CHECKS],
            "outputs": [_reference(node) for node in outputs],
            "dtypes": [dtype_name(node.meta["val"]) for node in outputs],
        }
        (directory / "program.json").write_text(json.dumps(written))
        write_signature(signature_of(program, bucket), directory)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Return a function that runs the calls; it shares the memory of the weights."""
        if host.get("byteorder", sys.byteorder) != sys.byteorder:
            raise LoadError(f"packaged on a {host['byteorder']}-endian machine: package the model again on this one")
        signature = read_signature(directory)
        program = json.loads((directory / "program.json").read_text())
        tensors = signature.pick_weights(weights)
        precision = np.float64 if program["double"] else None
        weight_names = program["weights"].items()
        constants = {node: _cast(tensors[name].detach().numpy(), precision) for node, name in weight_names}

        def run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
            signature.check_inputs(inputs)
            values = dict(constants)
            for name, tensor in zip(signature.inputs, inputs, strict=True):
                values[name] = _cast(tensor.detach().numpy(), precision)
            for call in program["calls"]:
                values[call["name"]] = OPERATORS[call["operator"]](*_resolve(call["args"], values), **call["options"])
            outputs = zip(_resolve(program["outputs"], values), program["dtypes"], strict=True)
            return [torch.from_numpy(np.array(output, dtype, order="C")) for output, dtype in outputs]

        return run


def _name(node: torch.fx.Node) -> str:
    target = node.target
    return str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", str(target))


def _width(state: Any) -> int:
    return int(state.meta["val"].shape[2])


def _cast(value: Any, dtype: type[np.floating[Any]] | None) -> Any:
    """Convert floating-point values to `dtype`, if one is given."""
    return value if dtype is None or value.dtype.kind != "f" else value.astype(dtype)


def _call(node: torch.fx.Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "operator": _name(node),
        "args": [_reference(arg) for arg in node.args],
        "options": {key: _reference(arg) for key, arg in node.kwargs.items() if key == "dtype"},
    }


def _reference(arg: Any) -> Any:
    """Convert an argument to JSON: the result of another call, and a dtype, by their names."""
    if isinstance(arg, torch.fx.Node):
        return {"result": arg.name}
    if isinstance(arg, torch.dtype):
        return str(arg).removeprefix("torch.")
    return [_reference(one) for one in arg] if isinstance(arg, (list, tuple)) else arg


def _resolve(arg: Any, values: Mapping[str, Any]) -> Any:
    """Convert JSON to an argument, with the results of calls in `values`: the inverse of `_reference`."""
    if isinstance(arg, list):
        return [_resolve(one, values) for one in arg]
    return values[arg["result"]] if isinstance(arg, dict) else arg

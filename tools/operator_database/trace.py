"""Graphs of one request: a sample's call, traced with a symbolic number of timesteps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from torchserve_neuron_lstm.bucketing.shapes import TensorSpec
from torchserve_neuron_lstm.lowering.one_request.decompositions import decompositions_of

TIMESTEPS = 23
_PASSES = 4


@dataclass(frozen=True)
class Traced:
    """A graph with its placeholders' constants, and the numbers of timesteps for which it holds."""

    module: torch.fx.GraphModule
    names: tuple[str, ...]
    """Placeholders of the inputs; those of the other ones are in `constants`."""
    constants: dict[str, torch.Tensor]
    guards: tuple[sympy.Basic, ...]

    def holds(self, timesteps: int) -> bool:
        """Whether no condition of the trace excludes this number of timesteps."""
        return all(guard.xreplace(dict.fromkeys(guard.free_symbols, sympy.Integer(timesteps))) for guard in self.guards)


def trace(function: Callable[..., Any], specs: Sequence[TensorSpec], tensors: Sequence[torch.Tensor]) -> Traced:
    """Trace a function of the inputs of one request, which have `TIMESTEPS` timesteps."""
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    fakes = [
        mode.from_tensor(tensor, symbolic_context=_context(spec)) for spec, tensor in zip(specs, tensors, strict=True)
    ]
    module = _functional(_made(function, mode, fakes, {}), mode, fakes)
    table: dict[Any, Any] = {}
    for _ in range(_PASSES):
        if not (more := {target: d for target, d in decompositions_of(module).items() if target not in table}):
            break
        table |= more
        module = _functional(_made(module, mode, fakes, table), mode, fakes)
    names = tuple(node.name for node in module.graph.nodes if node.op == "placeholder")
    constants = _constants(module)
    return Traced(module, names, constants, tuple(guard.expr for guard in env.guards if guard.expr.free_symbols))


def _context(spec: TensorSpec) -> StatelessSymbolicContext[Any, Any]:
    sizes = [DimDynamic.DUCK if size == "time" else DimDynamic.STATIC for size in spec.shape]
    return StatelessSymbolicContext(dynamic_sizes=sizes)


def _made(
    function: Callable[..., Any], mode: FakeTensorMode, fakes: Sequence[FakeTensor], table: dict[Any, Any]
) -> Any:
    with mode, enable_python_dispatcher(), torch.no_grad():
        return make_fx(function, decomposition_table=table, pre_dispatch=True, _allow_non_fake_inputs=True)(*fakes)


def _functional(module: torch.fx.GraphModule, mode: FakeTensorMode, fakes: Sequence[FakeTensor]) -> Any:
    targets = (node.target for node in module.graph.nodes)
    if not any(isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable for target in targets):
        return module
    return _made(torch.func.functionalize(module), mode, fakes, {})


def _constants(module: torch.fx.GraphModule) -> dict[str, torch.Tensor]:
    """Make placeholders of the tensors that the graph holds."""
    graph, constants = module.graph, dict[str, torch.Tensor]()
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        tensor = getattr(module, str(node.target))
        if isinstance(tensor, FakeTensor):
            raise TypeError("a constant has no value in a trace")
        with graph.inserting_before(next(iter(graph.nodes))):
            place = graph.placeholder(f"constant_{len(constants)}")
        place.meta["val"] = constants[place.name] = tensor
        node.replace_all_uses_with(place)
        graph.erase_node(node)
    return constants

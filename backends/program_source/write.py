"""Source of an exported program: a function that any torch with its operators runs.

    def program(tensors):
        p_linear_weight = tensors['linear.weight']
        aten_elu = torch.ops.aten.elu.default
        aten_linear = torch.nn.functional.linear

        def forward(x):
            elu = aten_elu(x)
            linear = aten_linear(elu, p_linear_weight)
            return (linear,)

        return forward

Weights, operators and layers of an engine's own are looked up once, when the program is loaded. Assertions are left
out: a program checks its inputs against its signature.
"""

from __future__ import annotations

import builtins
import keyword
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.graph import magic_methods

from ..exported_program import is_assertion
from ..exported_tensors import weight_names
from ..interface import CompileError
from ..recurrent_operators import is_custom
from .control_flow import CONTROL_FLOW
from .read import FUNCTIONS

_aten = torch.ops.aten

_EXPRESSIONS: Mapping[Any, str] = {
    **{getattr(operator, name): text for name, text in magic_methods.items() if hasattr(operator, name)},
    operator.not_: "not {0}",
    builtins.round: "round({args})",
    builtins.abs: "abs({0})",
    **{function: f"math.{function.__name__}({{0}})" for function in (math.ceil, math.floor, math.trunc)},
    torch.sym_max: "max({0}, {1})",
    torch.sym_min: "min({0}, {1})",
    torch.sym_int: "int({0})",
    torch.sym_float: "float({0})",
    torch.sym_not: "not {0}",
    torch.sym_ite: "{1} if {0} else {2}",
    torch.sym_sum: "sum({0})",
    _aten.sym_size.int: "{0}.size({1})",
    _aten.sym_numel.default: "{0}.numel()",
    _aten.sym_stride.int: "{0}.stride({1})",
    _aten.sym_storage_offset.default: "{0}.storage_offset()",
    _aten.alias.default: "{0}",
    _aten.detach.default: "{0}",
}
"""Expressions for sizes and for operators that return their input, in place of a call."""
_BOUND_BY_NAME = (
    _aten.add.Tensor, _aten.bmm.default, _aten.cat.default, _aten.div.Tensor, _aten.embedding.default,
    _aten.exp.default, _aten.layer_norm.default, _aten.matmul.default, _aten.mul.Tensor, _aten.permute.default,
    _aten.relu.default, _aten.reshape.default, _aten.select.int, _aten.sigmoid.default, _aten.softmax.int,
    _aten.squeeze.dim, _aten.stack.default, _aten.sub.Tensor, _aten.sum.dim_IntList, _aten.tanh.default,
    _aten.transpose.int, _aten.unsqueeze.default,
)  # fmt: skip
BINDINGS: Mapping[Any, str] = {
    _aten.linear.default: "torch.nn.functional.linear",
    **{operator: f"torch.{operator.overloadpacket.__name__}" for operator in _BOUND_BY_NAME},
}
"""Functions of torch that take the same arguments as an operator.

Calls through `torch.ops` take 1.4 to 2 times as long, and 20 to 40 us longer when a single request finds the caches
cold.
"""


def call_layer(layer: Any, *inputs: Any) -> Any:
    """Call a layer that a function of the engine made. A target of nodes; it is never run."""
    raise NotImplementedError


def program_source(program: ExportedProgram) -> str:
    """Return the source of a program. Raises `CompileError`: it has an operator that source cannot express."""
    names = weight_names(program)
    weights = {node: names[node.name] for node in program.graph.find_nodes(op="placeholder") if node.name in names}
    return graph_source(program.graph_module, weights)


def graph_source(
    module: GraphModule, weights: Mapping[Node, str], layers: Mapping[Callable[..., Any], str] | None = None
) -> str:
    """Return the source of a graph.

    `weights` are the names of the tensors that placeholders stand for. `layers` are functions that are called when the
    program is loaded, with weights and literals alone, and their names.

    Raises `CompileError`: the graph has an operator that source cannot express.
    """
    return "\n".join(_Writer(module, weights, layers or {}).lines()) + "\n"


class _Writer:
    """Writer of one graph, with the Python names of its nodes, operators and branches."""

    def __init__(
        self, module: GraphModule, weights: Mapping[Node, str], layers: Mapping[Callable[..., Any], str]
    ) -> None:
        self._module, self._weights, self._layers = module, weights, layers
        self._taken = {*keyword.kwlist, *dir(builtins), *FUNCTIONS, *layers.values(), "torch", "math", "tensors"}
        self._taken |= {"program", "forward"}
        called = _called(module)
        _check(called, layers)
        operators = [one for one in called if isinstance(one, torch._ops.OpOverload) and not is_custom(one)]
        self._operators = {target: self._new_name(_operator_name(target)) for target in operators}
        self._branches = {branch: self._new_name(path.replace(".", "_")) for path, branch in _branches(module).items()}
        self._nodes: dict[Node, str] = {}

    def lines(self) -> Iterator[str]:
        yield "def program(tensors):"
        for node, weight in self._weights.items():
            if node.users:
                yield f"    {self._name(node)} = tensors[{weight!r}]"
        for target, name in self._operators.items():
            yield f"    {name} = {BINDINGS.get(target, f'torch.ops.{target}')}"
        for node in self._module.graph.nodes:
            if node.target in self._layers:
                yield f"    {self._name(node)} = {self._layers[node.target]}({self._arguments(node)})"
        for branch, name in self._branches.items():
            yield from self._function(name, branch)
        yield from self._function("forward", self._module)
        yield ""
        yield "    return forward"

    def _function(self, name: str, module: GraphModule) -> Iterator[str]:
        nodes = [node for node in module.graph.nodes if not is_assertion(node)]
        inputs = [node for node in nodes if node.op == "placeholder" and node not in self._weights]
        yield ""
        yield f"    def {name}({', '.join(map(self._name, inputs))}):"
        calls = [node for node in nodes if node.op == "call_function" and node.target not in self._layers]
        freed = _last_uses(calls, nodes[-1])
        for node in calls:
            # Freed at once, as torch's own graphs do: values may be large.
            after = "".join(f"; del {', '.join(map(self._name, freed[node]))}" if freed[node] else "")
            result = f"{self._name(node)} = " if node.users else ""
            yield f"        {result}{self._call(node, module)}{after}"
        results = nodes[-1].args[0]
        one = isinstance(results, Node)  # the condition of a loop
        yield f"        return {self._value(results) if one else self._tuple(results)}"

    def _call(self, node: Node, module: GraphModule) -> str:
        target: Any = node.target
        if target is call_layer:
            layer, *inputs = (self._value(value) for value in node.args)
            return f"{layer}({', '.join(inputs)})"
        if target in _EXPRESSIONS:
            values = [f"({text})" if text.startswith("-") else text for text in map(self._value, node.args)]
            return _EXPRESSIONS[target].format(*values, args=", ".join(values))
        if target in self._operators:
            return f"{self._operators[target]}({self._arguments(node)})"
        if isinstance(target, torch._ops.OpOverload):
            return f"{target._opname}({self._arguments(node)})"
        name = f"math.{target.__name__[5:]}" if _is_size_function(target) else target.name()
        return f"{name}({self._arguments(node)})"

    def _arguments(self, node: Node) -> str:
        return ", ".join(
            [*map(self._value, node.args), *(f"{name}={self._value(value)}" for name, value in node.kwargs.items())]
        )

    def _value(self, value: Any) -> str:
        if isinstance(value, Node):
            return self._name(value) if value.op != "get_attr" else self._branch(value)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self._value, value))}]"
        return python_literal(value)

    def _tuple(self, values: Any) -> str:
        return f"({''.join(f'{self._value(value)}, ' for value in values)})"

    def _branch(self, node: Node) -> str:
        owner = node.graph.owning_module
        assert owner is not None
        branch = owner.get_submodule(str(node.target))
        assert isinstance(branch, GraphModule)
        return self._branches[branch]

    def _name(self, node: Node) -> str:
        if node not in self._nodes:
            self._nodes[node] = self._new_name(node.name)
        return self._nodes[node]

    def _new_name(self, wanted: str) -> str:
        name = wanted
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def _branches(module: GraphModule) -> dict[str, GraphModule]:
    """The graphs that higher-order operators call, the inner ones first."""
    found = {path: branch for path, branch in module.named_modules() if isinstance(branch, GraphModule) and path}
    return dict(sorted(found.items(), key=lambda item: -item[0].count(".")))


def _called(module: GraphModule) -> list[Any]:
    """The functions that are called, each once, without those that are written as expressions."""
    graphs = (module.graph, *(branch.graph for branch in _branches(module).values()))
    calls = (node for graph in graphs for node in graph.nodes if node.op == "call_function" and not is_assertion(node))
    return list(dict.fromkeys(call.target for call in calls if call.target not in _EXPRESSIONS))


def _check(called: list[Any], layers: Mapping[Callable[..., Any], str]) -> None:
    """Check that source can express every call. Raises `CompileError`: it cannot express one."""
    for target in called:
        known = isinstance(target, torch._ops.OpOverload) or target is call_layer or target in layers
        control_flow = isinstance(target, torch._ops.HigherOrderOperator) and target.name() in CONTROL_FLOW
        if not known and not control_flow and not _is_size_function(target):
            raise CompileError(f"the program calls {target}, which cannot be written as source")


def _is_size_function(target: Any) -> bool:
    """Whether it is a function of sizes that Python's `math` has as well."""
    return str(getattr(target, "__name__", "")).startswith("_sym_")


def _operator_name(target: torch._ops.OpOverload) -> str:
    """Return a name for an operator in Python.

    >>> _operator_name(torch.ops.aten.add.Tensor), _operator_name(torch.ops.aten.tanh.default)
    ('aten_add_Tensor', 'aten_tanh')
    """
    return str(target).replace(".default", "").replace(".", "_")


def _last_uses(calls: list[Node], output: Node) -> dict[Node, list[Node]]:
    """The values that no later call of the same graph reads, by the call that reads them last."""
    freed: dict[Node, list[Node]] = {node: [] for node in calls}
    places = {node: place for place, node in enumerate(calls)}
    for node in calls:
        readers = [user for user in node.users if user in places]
        if readers and output not in node.users:
            freed[max(readers, key=places.__getitem__)].append(node)
    return freed


def python_literal(value: Any) -> str:
    """Return the Python source of a value.

    >>> [python_literal(value) for value in (1, float("inf"), torch.float32, torch.device("cpu"), None)]
    ['1', "float('inf')", 'torch.float32', "torch.device('cpu')", 'None']

    Raises `CompileError`: source cannot express a value of its type.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    known = (bool, int, float, complex, str, torch.dtype, torch.layout, torch.memory_format)
    if value is not None and not isinstance(value, known):
        raise CompileError(f"the program has {value!r} ({type(value).__name__}), which cannot be written as source")
    return repr(value)

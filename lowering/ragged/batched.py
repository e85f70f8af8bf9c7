"""Run of one request's graph on a ragged batch, and its export as a program over padded tensors."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from ...backends.assertions import is_assertion
from ...backends.recurrent_calls import is_recurrent
from ...bucketing.shapes import TensorSpec
from ..errors import LoweringError, node_line, source_suffix
from .call import Call
from .rules import rule_of
from .scan_rule import scan
from .sizes import SizeExpr, UnknownSize, expression, is_ragged
from .value import Batch, NoRule, Value


class RaggedRun(torch.fx.Interpreter):
    """Interpreter of the graph of one request, whose values are those of a whole batch.

    `inputs` are the layouts of the user's inputs; `tensors` are weights and constants by placeholder.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        inputs: Mapping[str, TensorSpec],
        tensors: Mapping[str, torch.Tensor],
        batch: Batch,
    ) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self._inputs, self._tensors, self._batch = inputs, tensors, batch

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node.

        Raises:
            LoweringError: the operator has no rule for these arguments; names the user's line.
        """
        try:
            with torch.fx.traceback.set_current_meta(n):
                return self._run(n)
        except (NoRule, UnknownSize) as error:
            name = ".".join(str(n.target).split(".")[:2])
            raise LoweringError(
                f"{name} mixes timesteps in a way that has no rule: {error}{source_suffix(node_line(n))}"
            ) from error

    def _run(self, n: torch.fx.Node) -> Any:
        if n.op == "placeholder":
            return self._placeholder(n)
        if n.op != "call_function":
            return self.fetch_attr(str(n.target)) if n.op == "get_attr" else self.map_nodes_to_values(n.args[0], n)
        found = n.meta.get("val")
        if isinstance(found, (torch.SymInt, torch.SymFloat, int, float)) and not isinstance(found, bool):
            return expression(found)
        if n.target is operator.getitem:
            return self.env[n.args[0]][n.args[1]]  # type: ignore[index]  # a node
        if is_assertion(n) or isinstance(found, (torch.SymBool, bool)) or found is None:
            return None
        return self._scan(n, found) if n.target is torch.ops.higher_order.scan else self._call(n, found)

    def _scan(self, n: torch.fx.Node, found: Any) -> Any:
        arguments: Any = self.map_nodes_to_values(n.args, n)
        return scan(self._batch, arguments, [_sizes(result) for result in found], _run_step)

    def _placeholder(self, n: torch.fx.Node) -> Value:
        sizes = _sizes(n.meta["val"])
        if n.name in self._tensors:
            return Value(self._tensors[n.name], sizes, shared=True)
        spec, tensor = self._inputs[n.name], next(self.args_iter)
        if spec.batch_dim is None:
            raise NoRule("an input without a batch dimension")
        return Value(tensor.movedim(spec.batch_dim, 0).unsqueeze(1 + spec.batch_dim), sizes)

    def _call(self, n: torch.fx.Node, found: Any) -> Any:
        results = list(found) if isinstance(found, (tuple, list)) else [found]
        sizes = tuple(_sizes(result) for result in results)
        call = Call(n.target, self._arguments(n), sizes, tuple(result.dtype for result in results))  # type: ignore[arg-type]  # an operator
        if call.shared and not any(map(is_ragged, _all_sizes(call))) and not is_recurrent(n.target):
            return self._shared(call, found)
        rule = rule_of(n.target)
        if rule is None:
            raise NoRule("the operator is not known")
        made = rule(self._batch, call)
        values = made if isinstance(made, tuple) else (made,)
        # A batch normalisation in eval mode has further results of no elements, which nothing reads.
        checked = tuple(self._checked(v, s, d) for v, s, d in zip(values, sizes, call.dtypes, strict=False))
        return checked if isinstance(found, (tuple, list)) else checked[0]

    def _shared(self, call: Call, found: Any) -> Any:
        """Run a call on weights and constants only, as it is."""
        result = call.run(**{name: _number(argument) for name, argument in call.arguments.items()})
        if isinstance(found, (tuple, list)):
            return tuple(Value(t, s, shared=True) for t, s in zip(result, call.sizes, strict=True))
        return Value(result, call.sizes[0], shared=True)

    def _checked(self, value: Value, sizes: tuple[SizeExpr, ...], dtype: torch.dtype) -> Value:
        tensor = value.tensor if value.tensor.dtype is dtype else value.tensor.to(dtype)
        expected = len(sizes) + (not value.shared)
        if tensor.dim() != expected:
            raise NoRule(f"its result has {tensor.dim()} dimensions instead of {expected}")
        return Value(tensor, sizes, value.shared, value.zero_beyond)

    def _arguments(self, n: torch.fx.Node) -> dict[str, Any]:
        args: Any = self.map_nodes_to_values(n.args, n)
        kwargs: Any = self.map_nodes_to_values(n.kwargs, n)
        schema = n.target._schema.arguments  # type: ignore[union-attr]  # an operator
        given = {argument.name: value for argument, value in zip(schema, args, strict=False)}
        defaults = {a.name: a.default_value for a in schema}
        return {**defaults, **given, **kwargs}


class _StepRun(RaggedRun):
    """Interpreter of the graph of one step of a loop, which takes the values of a batch in order."""

    def __init__(self, graph: torch.fx.GraphModule, batch: Batch) -> None:
        super().__init__(graph, {}, {}, batch)

    def _placeholder(self, n: torch.fx.Node) -> Value:
        value: Value = next(self.args_iter)
        return value


def _run_step(graph: torch.fx.GraphModule, values: Sequence[Value], batch: Batch) -> Sequence[Value]:
    results: Sequence[Value] = _StepRun(graph, batch).run(*values)
    return results


def _all_sizes(call: Call) -> list[SizeExpr]:
    own = [size for sizes in (*call.sizes, *(value.sizes for value in call.values())) for size in sizes]
    return own + [argument for argument in call.arguments.values() if isinstance(argument, sympy.Expr)]


def _number(argument: Any) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_number(item) for item in argument]
    if isinstance(argument, sympy.Expr):
        return int(argument) if argument.is_Integer else float(argument)
    return argument


def _sizes(value: torch.Tensor) -> tuple[SizeExpr, ...]:
    return tuple(expression(size) for size in value.shape)


def run_ragged(
    module: torch.fx.GraphModule,
    inputs: Sequence[tuple[str, TensorSpec]],
    tensors: Mapping[str, torch.Tensor],
    arguments: Sequence[torch.Tensor],
    lengths: torch.Tensor,
    time: Any,
) -> list[Value]:
    """Run the graph of one request on padded inputs of a batch.

    Raises:
        LoweringError: an operator has no rule; names the user's line.
    """
    batch = Batch(lengths.shape[0], time, lengths)
    run = RaggedRun(module, dict(inputs), tensors, batch)
    with torch.fx.traceback.preserve_node_meta():  # the new nodes keep the lines of the user's model
        outputs = run.run(*arguments)
    return [_with_rows(batch, value) for value in outputs]


def _with_rows(batch: Batch, value: Value) -> Value:
    return Value(batch.every_row(value), value.sizes) if value.shared else value

"""Run of one request's graph on a ragged batch, and its export as a program over padded tensors."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from ...backends.exported_program import is_assertion
from ...backends.recurrent_operators import is_recurrent
from ...backends.signature import dtype_name
from ...bucketing.shapes import Axis, DType, TensorSpec
from ..errors import LoweringError, at_line, explained_export_errors
from ..exported_graph import named_arguments
from ..exporter.export import drop_unused, dynamic_shape, example_tensor, export_quietly, with_parameter_names
from ..exporter.subgraph import holder_of, tensors_by_placeholder
from ..one_request.single_request import SingleExport
from .dimension_moves import join_moves
from .recurrence_rules import scan
from .rules import each_row, rule_for_spectra, rule_of
from .sizes import SizeExpr, evaluate, expression, in_python, is_ragged, never_falls, written
from .spectrum_rules import NO_CONVOLUTION, Spectrum
from .value import Batch, Call, NoRule, Value, moved
from .zero_signs import check_choice, hides, sign_sensitive


class RaggedRun(Interpreter):
    """Interpreter of the graph of one request, whose values are those of a whole batch.

    `inputs` are the layouts of the user's inputs; `tensors` are weights and constants by placeholder.
    """

    def __init__(
        self, module: GraphModule, inputs: Mapping[str, TensorSpec], tensors: Mapping[str, torch.Tensor], batch: Batch
    ) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self._inputs, self._tensors, self._batch = inputs, tensors, batch
        self._sign_sensitive = sign_sensitive(module.graph, divisions=True, outputs=not inputs)
        self._sign_read = sign_sensitive(module.graph, divisions=False)

    def run_node(self, n: Node) -> Any:
        """Run a node. Raises `LoweringError`: the operator has no rule for these arguments; names the user's line."""
        try:
            with torch.fx.traceback.set_current_meta(n):
                return self._run(n)
        except NoRule as error:
            name = ".".join(str(n.target).split(".")[:2])
            raise LoweringError(f"{name} mixes timesteps in a way that has no rule: {error}{at_line(n)}") from error
        except LoweringError:
            raise
        except Exception:  # a rule calls torch's operators, which raise errors of many types
            with explained_export_errors(f"{n.target} on a batch of requests{at_line(n)}"):
                raise

    def _run(self, n: Node) -> Any:
        if n.op == "placeholder":
            return self._placeholder(n)
        if self._takes_spectra(n) and rule_for_spectra(n.target) is None:
            raise NoRule(NO_CONVOLUTION)
        if n.op != "call_function":
            return self.fetch_attr(str(n.target)) if n.op == "get_attr" else self.map_nodes_to_values(n.args[0], n)
        found = n.meta.get("val")
        if isinstance(found, torch.SymInt) and free_unbacked_symbols(found):
            raise NoRule("a number is read from data")
        if isinstance(found, (torch.SymInt, torch.SymFloat, int, float)) and not isinstance(found, bool):
            return expression(found)
        if n.target is operator.getitem:
            return self.env[n.args[0]][n.args[1]]  # type: ignore[index]  # a node
        if is_assertion(n) or isinstance(found, (torch.SymBool, bool)) or found is None:
            return None
        return self._scan(n, found) if n.target is torch.ops.higher_order.scan else self._call(n, found)

    def _takes_spectra(self, n: Node) -> bool:
        return any(isinstance(self.env[node], Spectrum) for node in n.all_input_nodes)

    def _scan(self, n: Node, found: Any) -> Any:
        arguments: Any = self.map_nodes_to_values(n.args, n)
        sizes = [_sizes(result) for result in found]
        return scan(self._batch, arguments, sizes, lambda step, own, batch: RaggedRun(step, {}, {}, batch).run(*own))

    def _placeholder(self, n: Node) -> Value:
        if not self._inputs:  # the graph of one step of a loop takes the values of a batch in order
            return next(self.args_iter)  # type: ignore[no-any-return]  # a value
        if n.name not in self._tensors and n.name not in self._inputs:
            raise NoRule("an operator checks its result, as torch.linalg.inv does, so its place in the code counts")
        sizes = _sizes(n.meta["val"])
        if n.name in self._tensors:
            return Value(self._tensors[n.name], sizes, shared=True)
        spec, tensor = self._inputs[n.name], next(self.args_iter)
        if spec.batch_dim is None:
            is_alone = all(other.batch_dim is None for other in self._inputs.values())
            return Value(tensor.unsqueeze(0), sizes) if is_alone else Value(tensor, sizes, shared=True)
        return Value(moved(tensor, spec.batch_dim, 0).unsqueeze(1 + spec.batch_dim), sizes, is_input=True)

    def _call(self, n: Node, found: Any) -> Any:
        if any(isinstance(node.meta.get("val"), torch.SymBool) for node in n.all_input_nodes):
            raise NoRule("a comparison of numbers of timesteps is a value: compare tensors, such as lengths")
        results = list(found) if isinstance(found, (tuple, list)) else [found]
        sizes = tuple(_sizes(result) for result in results)
        dtypes = tuple(result.dtype for result in results)
        read = frozenset(user.args[1] for user in n.users if user.target is operator.getitem)
        sensitive = n in self._sign_sensitive and dtypes[0].is_floating_point and not all(map(hides, n.all_input_nodes))
        traced = n.args[0].meta.get("val") if n.args and isinstance(n.args[0], Node) else None
        call = Call(n.target, self._arguments(n), sizes, dtypes, read, sensitive, traced)  # type: ignore[arg-type]  # an operator
        if sensitive:
            check_choice(call, n in self._sign_read)
        if call.shared and not any(map(is_ragged, call.all_sizes())) and not is_recurrent(n.target):
            return self._shared(call, found)
        rule = rule_for_spectra(n.target) if self._takes_spectra(n) else rule_of(n.target) or each_row
        assert rule is not None
        made = rule(self._batch, call)
        values = made if isinstance(made, tuple) else (made,)
        # A batch normalisation in eval mode has further results of no elements, which nothing reads.
        checked = tuple(self._checked(v, s, d) for v, s, d in zip(values, sizes, call.dtypes, strict=False))
        return checked if isinstance(found, (tuple, list)) else checked[0]

    def _shared(self, call: Call, found: Any) -> Any:
        """Run a call on weights and constants only, as it is."""
        result = call.run(**pytree.tree_map(in_python, dict(call.arguments)))
        if isinstance(found, (tuple, list)):
            return tuple(Value(t, s, shared=True) for t, s in zip(result, call.sizes, strict=True))
        return Value(result, call.sizes[0], shared=True)

    def _checked(self, value: Value, sizes: tuple[SizeExpr, ...], dtype: torch.dtype) -> Value:
        tensor = value.tensor if value.tensor.dtype is dtype else value.tensor.to(dtype)
        expected = len(sizes) + (not value.shared)
        if tensor.dim() != expected:
            raise NoRule(f"its result has {tensor.dim()} dimensions instead of {expected}")
        falling = [size for size in sizes if is_ragged(size) and not never_falls(size)]
        if falling:  # the padded tensor has the size of the longest request, and another row's would not fit into it
            raise NoRule(f"a shorter request may have the greater size of {falling[0]}")
        return replace(value, tensor=tensor, sizes=sizes)

    def _arguments(self, n: Node) -> dict[str, Any]:
        args: Any = self.map_nodes_to_values(n.args, n)
        kwargs: Any = self.map_nodes_to_values(n.kwargs, n)
        return named_arguments(n.target, args, kwargs)


def _sizes(value: torch.Tensor) -> tuple[SizeExpr, ...]:
    return tuple(expression(size) for size in value.shape)


def run_ragged(
    module: GraphModule,
    inputs: Sequence[tuple[str, TensorSpec]],
    tensors: Mapping[str, torch.Tensor],
    arguments: Sequence[torch.Tensor],
    lengths: torch.Tensor,
    time: Any,
    before: torch.Tensor | None = None,
) -> list[Value]:
    """Run the graph of one request on padded inputs of a batch, perhaps `before` timesteps after its first one.

    Raises `LoweringError`: an operator has no rule; names the user's line.
    """
    batch = Batch(lengths.shape[0], time, lengths, before)
    run = RaggedRun(module, dict(inputs), tensors, batch)
    with torch.fx.traceback.preserve_node_meta():  # the new nodes keep the lines of the user's model
        outputs = run.run(*arguments)
    return [Value(batch.every_row(value), value.sizes) if value.shared else value for value in outputs]


_ROWS = 3
Layout = tuple[DType, tuple[int | Axis | str, ...]]
"""The type and the sizes of an output: the batch is in the place of the first dimension of size 1."""


def export_ragged(
    single: SingleExport, inputs: Sequence[TensorSpec], places: Sequence[int | None], *, counts: bool = False
) -> tuple[ExportedProgram, list[Layout]]:
    """Export the graph of one request as a program: inputs padded to [B, T, ...], lengths[B] -> outputs.

    A program of inputs without time takes no lengths. One that `counts` takes the timesteps of each request before
    those of the batch, int64[B], in front of the lengths: positions continue them.

    `places` are the batch dimensions of outputs, where they are known. The layouts of the outputs are returned, too.

    Raises `LoweringError`: an operator has no rule over ragged batches; names the user's line.
    """
    exported = single.exported
    module = exported.graph_module
    names = [str(name) for name in exported.graph_signature.user_inputs]
    found: list[tuple[Value, int | None]] = []
    holder = holder_of(exported)

    timed = next((number for number, spec in enumerate(inputs) if spec.time_dim is not None), None)
    batched = has_batch(inputs)

    def forward(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if timed is None:
            sizes = [t.shape[s.batch_dim] for t, s in zip(arguments, inputs, strict=True) if s.batch_dim is not None]
            padded, lengths, time = list(arguments), torch.ones(next(iter(sizes), 1), dtype=torch.int64), 1
        else:
            padded, lengths = list(arguments[: len(inputs)]), arguments[-1]
            time = padded[timed].shape[cast(int, inputs[timed].time_dim)]
        tensors = tensors_by_placeholder(exported, holder)
        before = arguments[-2] if counts else None
        values = run_ragged(module, list(zip(names, inputs, strict=True)), tensors, padded, lengths, time, before)
        pairs = zip_longest(values, places[: len(values)])
        found[:] = [(value, _batch_place(value.sizes, place) if batched else None) for value, place in pairs]
        return tuple(_contiguous_item(value, place, batched) for value, place in found)

    names_of_lengths = [] if timed is None else [*["timesteps_before"] * counts, "sequence_lengths"]
    holder.forward = with_parameter_names(forward, [*(s.name.replace(".", "_") for s in inputs), *names_of_lengths])
    with explained_export_errors("a batch of requests", dynamic_shapes=True):
        program = _export(holder, inputs, single, len(names_of_lengths))
    join_moves(program)
    drop_unused(program)
    return program, [_layout(value, place, batched) for value, place in found]


def _export(
    holder: torch.nn.Module, inputs: Sequence[TensorSpec], single: SingleExport, counted: int
) -> ExportedProgram:
    """Export for every number of rows and timesteps; if strides forbid the smallest, for all above them."""
    batch = torch.export.Dim("batch", min=1)
    rows, of_lengths = (_ROWS, {0: batch}) if has_batch(inputs) else (1, {})
    tensors = [example_tensor(spec, _ROWS, single.timesteps) for spec in inputs]
    tensors += [torch.ones(rows, dtype=torch.int64) for _ in range(counted)]

    def export(time: Any) -> ExportedProgram:
        shapes = [dynamic_shape(spec, {"batch": batch, "time": time}) for spec in inputs]
        return export_quietly(holder, tensors, [*shapes, *[of_lengths] * counted])

    try:
        return export(torch.export.Dim("time", min=single.shortest))
    except Exception as error:
        if "Constraints violated" not in str(error):  # the exporter's message when a size was fixed or bounded
            raise
    return export(torch.export.Dim.AUTO)


def reject_impossible_numbers(exported: ExportedProgram, lengths: Sequence[int]) -> None:
    """Refuse a divisor that is 0 for a request of some number of timesteps, and a number beyond those of int64.

    Raises `LoweringError`: names the line.
    """
    for node in exported.graph.nodes:
        if node.target in (operator.truediv, operator.floordiv, operator.mod):
            divisor = expression(getattr(node.args[1], "meta", {}).get("val", node.args[1]))
            zero = next((n for n in lengths if is_ragged(divisor) and evaluate(divisor, n) == 0), None)
            if zero is not None:
                raise LoweringError(f"a divisor is 0 for {zero} timesteps{at_line(node)}")
        number = node.meta.get("val")
        is_known = isinstance(number, torch.SymInt) and not free_unbacked_symbols(number)
        if is_known and abs(evaluate(expression(number), lengths[-1])) >= 2**63:
            raise LoweringError(f"a number is beyond int64 for {lengths[-1]} timesteps{at_line(node)}")


def has_time(inputs: Sequence[TensorSpec]) -> bool:
    """Whether an input has a time dimension."""
    return any(spec.time_dim is not None for spec in inputs)


def has_batch(inputs: Sequence[TensorSpec]) -> bool:
    """Whether an input has a batch dimension; without one, a request is run alone."""
    return any(spec.batch_dim is not None for spec in inputs)


def _batch_place(sizes: Sequence[SizeExpr], known: int | None) -> int | None:
    """Return the dimension of one request's output that is its batch: the known one, or the first of size 1."""
    if known is not None and known < len(sizes) and sizes[known] == 1:
        return known
    return next((dim for dim, size in enumerate(sizes) if size == 1), None)


def _contiguous_item(value: Value, place: int | None, batched: bool) -> torch.Tensor:
    if not batched:
        return value.tensor.squeeze(0).contiguous()
    tensor = value.tensor if place is None else moved(value.tensor.squeeze(place + 1), 0, place)
    return tensor.contiguous()


def _layout(value: Value, place: int | None, batched: bool) -> Layout:
    """Return the type and the sizes as the manifest has them: numbers, `batch`, and expressions of `time`."""
    own = [written(size) if is_ragged(size) else int(size) for dim, size in enumerate(value.sizes) if dim != place]
    if batched:
        own.insert(place or 0, "batch")
    return cast(DType, dtype_name(value.tensor)), tuple(own)

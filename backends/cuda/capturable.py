"""Programs that can be captured: no call waits for a value, and no size depends on one. Used while packaging only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node, map_arg
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..interface import CompileError
from ..recurrent_operators import is_positions

_Waits = Callable[[Sequence[Any]], bool]
"""Whether a call waits, by all its arguments in the order of the operator's schema."""

_aten = torch.ops.aten


def _in_order(target: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """All arguments of a call, with their defaults."""
    return [*args, *(kwargs.get(one.name, one.default_value) for one in target._schema.arguments[len(args) :])]


def _always(arguments: Sequence[Any]) -> bool:
    return True


def _if_checked(arguments: Sequence[Any]) -> bool:
    """Whether `check_errors`, the last argument, is set."""
    return bool(arguments[-1])


_WAITING: Mapping[torch._ops.OpOverload, _Waits] = {
    # Results that are checked for singular matrices and for convergence.
    _aten._linalg_check_errors.default: _always,
    _aten._linalg_eigh.default: _always,
    _aten._linalg_svd.default: _always,
    _aten.linalg_eig.default: _always,
    _aten._linalg_eigvals.default: _always,
    _aten.linalg_pinv.atol_rtol_tensor: _always,
    _aten.cholesky.default: _always,
    _aten.linalg_inv_ex.default: _if_checked,
    _aten.linalg_cholesky_ex.default: _if_checked,
    _aten.linalg_lu_factor_ex.default: _if_checked,
    _aten.linalg_ldl_factor_ex.default: _if_checked,
    _aten._linalg_solve_ex.default: _if_checked,
    # The degree of the polynomial is chosen by the norms.
    _aten.linalg_matrix_exp.default: _always,
    # The number of those that are not NaN is read, or an empty range, or probabilities, or lengths.
    _aten.nanmedian.default: _always,
    _aten.histc.default: lambda arguments: bool(arguments[2] == arguments[3]),
    _aten.multinomial.default: lambda arguments: not arguments[2] or arguments[1] == 1,
    _aten.segment_reduce.default: lambda arguments: not arguments[-2],
    # Of 10 elements and more, equal ones are sorted out first, whose number is a size.
    _aten.isin.Tensor_Tensor: lambda arguments: not arguments[2] and int(arguments[1].numel()) >= 10,
    # Ends of a range that are tensors.
    _aten.linspace.Tensor_Tensor: _always,
    _aten.linspace.Tensor_Scalar: _always,
    _aten.linspace.Scalar_Tensor: _always,
    _aten.logspace.Tensor_Tensor: _always,
    _aten.logspace.Tensor_Scalar: _always,
    _aten.logspace.Scalar_Tensor: _always,
}
"""Operators that wait for a value of a tensor, although torch has no tag for it."""


_LOG = logging.getLogger(__name__)


class _CannotBeCaptured(Exception):
    """A call that cannot be part of a CUDA graph."""


def capture_refusal(node: Node) -> str | None:
    """Return why a call of an exported program cannot be part of a CUDA graph; None if it can."""
    target: Any = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"{target.name()} decides by a value of a tensor" if target.name() in ("cond", "while_loop") else None
    if is_positions(target):
        return f"{target} waits for the lengths of the rows"
    if not isinstance(target, torch._ops.OpOverload) or not (node.users or target._schema.is_mutable):
        return None
    args, kwargs, mode = _example_arguments(node)
    if not _is_composite(target):
        reason = _own_refusal(target, args, kwargs)
    else:
        reason = _tag_refusal(target) if mode is None else _inner_refusal(target, args, kwargs, mode)
    if reason is None:  # composite operators have no tag for a size that first appears in their outputs
        known = {symbol for argument in node.all_input_nodes for symbol in _data_dependent(argument)}
        reason = "returns a size that depends on data" if _data_dependent(node) - known else None
    return None if reason is None else f"{target} {reason}"


def _inner_refusal(
    target: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], mode: FakeTensorMode
) -> str | None:
    """Return the reason why a call that a composite operator makes cannot be captured."""
    try:
        with torch.no_grad(), mode, _RefusingMode():  # type: ignore[no-untyped-call]  # torch's constructor
            target(*args, **kwargs)
    except _CannotBeCaptured as found:
        return str(found)
    except Exception as error:  # noqa: BLE001 - what torch cannot trace may still run; loading names it if not
        _LOG.debug("the calls of %s cannot be determined: %s", target, error)
    return None


def _own_refusal(target: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the reason why an operator that is no composite cannot be captured."""
    if target in (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default):
        masked = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        return "selects by a mask, so that a size depends on data" if masked else None
    if target == _aten.repeat_interleave.Tensor and kwargs.get("output_size") is not None:
        return None  # the size is given, so nothing is read
    waits = _WAITING.get(target)
    if waits is not None and waits(_in_order(target, args, kwargs)):
        return "reads a value of a tensor"
    return _tag_refusal(target)


def _tag_refusal(target: torch._ops.OpOverload) -> str | None:
    if torch.Tag.data_dependent_output in target.tags:
        return "reads a value of a tensor"
    if torch.Tag.dynamic_output_shape in target.tags:
        return "returns a size that depends on data"
    return None


def check_capturable(module: GraphModule) -> None:
    """Check every call of a graph and of its branches.

    Raises `CompileError`: calls cannot be part of a CUDA graph; all of them are named.
    """
    graphs = [part.graph for part in module.modules() if isinstance(part, GraphModule)]
    found = [reason for graph in graphs for node in graph.nodes if (reason := capture_refusal(node)) is not None]
    if found:
        raise CompileError(
            f"cuda records the calls of a program once, as a CUDA graph, and {'; '.join(dict.fromkeys(found))}. Write "
            f"partitioner_config: {{}} to run such calls on the CPU, or use another backend"
        )


def place_factories(module: GraphModule) -> None:
    """Name the CPU in calls that make tensors and name no device. Loading replaces it by the name of the GPU."""
    for part in module.modules():
        if isinstance(part, GraphModule):
            for node in part.graph.nodes:
                if _is_factory(node) and node.kwargs.get("device") is None:
                    node.kwargs = {**node.kwargs, "device": torch.device("cpu")}


def _is_factory(node: Node) -> bool:
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    arguments = target._schema.arguments
    takes_tensors = any("Tensor" in str(argument.type) for argument in arguments)
    return not takes_tensors and any(argument.name == "device" for argument in arguments)


def _data_dependent(node: Node) -> set[Any]:
    """The symbols of a node's sizes that depend on data."""
    tensors = [leaf for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)]
    return {symbol for tensor in tensors for symbol in free_unbacked_symbols(tensor)}


def _is_composite(target: torch._ops.OpOverload) -> bool:
    """Whether torch computes an operator by others.

    >>> _is_composite(torch.ops.aten.linalg_inv.default), _is_composite(torch.ops.aten.sort.default)
    (True, False)
    """
    return target.namespace == "aten" and torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), "CompositeImplicitAutograd"
    )


def _example_arguments(node: Node) -> tuple[Sequence[Any], Mapping[str, Any], FakeTensorMode | None]:
    """Return arguments of a call, without values, in the sizes that its program was exported with, and their mode.

    There is no mode if some sizes depend on data: those are 1 here.
    """
    unknown: list[object] = []

    def example(source: Node) -> Any:
        value = source.meta["val"]
        if not isinstance(value, torch.Tensor):
            return _known(value, unknown)
        return torch.empty([_known(size, unknown) for size in value.shape], dtype=value.dtype)

    with FakeTensorMode() as mode:
        args, kwargs = map_arg((node.args, dict(node.kwargs)), example)
    return args, kwargs, None if unknown else mode


class _RefusingMode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (reason := _own_refusal(func, args, kwargs or {})) is not None:
            raise _CannotBeCaptured(reason)
        return func(*args, **(kwargs or {}))


def _known(size: Any, unknown: list[object]) -> Any:
    """The number that a symbol stood for while the model was exported."""
    if not isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool):
        return size
    if not size.node.has_hint():
        unknown.append(size)
        return 1
    return size.node.hint

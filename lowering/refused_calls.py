"""Calls and modules that lowering refuses: random operators and TorchScript."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..config.schema import ServingConfig
from .eager_call import copy_of, eager_answers, failure_of
from .errors import LoweringError, calling_line, node_line, source_suffix
from .exported_graph import named_arguments


def reject_random_operators(exported: torch.export.ExportedProgram) -> None:
    """Refuse a program that draws random numbers. Raises `LoweringError`: names the operator and the line."""
    for node in exported.graph.nodes:
        if _draws(node.target, node.args, node.kwargs):
            raise _error(node.target, node_line(node))


def random_call(model: torch.nn.Module, config: ServingConfig) -> LoweringError | None:
    """Return the error about the first random number that a model draws in eager mode, if any."""
    length = config.grid.lengths[-1]
    noted = _NotedDraws()  # type: ignore[no-untyped-call]  # the constructor of torch
    with torch.random.fork_rng(devices=[]), noted:
        failure_of(copy_of(model), config, length, torch.tensor([length]))
    return noted.first


def kept_state(model: torch.nn.Module, config: ServingConfig, refusal: LoweringError) -> LoweringError | None:
    """Return the error about a refused model whose answer to a request depends on earlier calls; else None."""
    length = config.grid.lengths[-1]
    tried = copy_of(model)
    try:
        first, second = (eager_answers(tried, config, length, torch.tensor([length])) for _ in range(2))
        if all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second, strict=False)):
            return None
    except Exception:  # noqa: BLE001 - the user's code, whose error others explain; or outputs that are sparse
        return None
    return LoweringError(
        f"{type(model).__name__} returns different outputs when it is called again with the same request ({length} "
        "timesteps): it keeps state between calls, as in `self.hidden = ...` in forward(). Compute the first state in "
        f"forward(), or take it as an input. {refusal}"
    )


class _NotedDraws(TorchDispatchMode):
    """Mode that keeps an error about the first random operator."""

    first: LoweringError | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.first is None and _draws(func, args, kwargs or {}):
            self.first = _error(func, calling_line())
        return func(*args, **(kwargs or {}))


def _error(operator: object, line: str | None) -> LoweringError:
    return LoweringError(
        f"{'.'.join(str(operator).split('.')[:2])}{source_suffix(line)} is random in eval mode "
        "too; a served model must return the same outputs for equal requests (for dropout use nn.Dropout, or "
        "pass training=self.training; make a random first state once, in the constructor, as a buffer or a parameter)"
    )


def _draws(operator: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call draws random numbers: some operators do so only in training, or with a probability."""
    if not isinstance(operator, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    arguments = named_arguments(operator, args, kwargs)
    switches = [arguments[name] for name in ("train", "training", "dropout_p") if name in arguments]
    return not switches or any(switch not in (False, 0) for switch in switches)


def reject_scripted(model: torch.nn.Module) -> None:
    """Refuse a model with a module in TorchScript. Functions in TorchScript may be called.

    Raises `LoweringError`: names the module and its class.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            own_class = getattr(module, "original_name", type(module).__name__)
            raise LoweringError(
                f"{name or 'the model'} is a TorchScript module ({own_class}), whose code cannot be traced: leave out "
                "torch.jit.script(module), and derive its class from torch.nn.Module in place of "
                "torch.jit.ScriptModule, without @torch.jit.script_method. Its weights keep their names"
            )

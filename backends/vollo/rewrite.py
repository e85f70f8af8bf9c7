"""A program of fixed sizes rewritten for Vollo: its LSTMs by themselves, and what depends on lengths around them.

An LSTM that is handed a state, or whose cell state is read at the end, is written out step by step, for Vollo's own
takes no state and gives none.

What an LSTM gives on padding must be zeros wherever something could tell the difference. Where nothing can, the zeros
are left out, so that layers and what follows them in time stay together on the device: what is computed step by step
for an answer in time, a further layer of the same lengths, and each row's own last step.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..interface import CompileError
from . import operators as _operators  # noqa: F401  registers them
from .translate import refusal

_aten = torch.ops.aten
_ours = torch.ops.neuron_lstm
_LSTM = _ours.lstm.default
_RNN = _ours.rnn.default
_VOLLO_LSTM = _ours.vollo_lstm.default
_MASK_PADDING = _ours.mask_padding.default

_ZEROS = {_aten.zeros.default, _aten.new_zeros.default, _aten.zeros_like.default}
_FULL = {_aten.full.default: 1, _aten.new_full.default: 2}
"""Operators with a value to fill with, and its place."""
_KEEP_VALUES = {
    _aten.expand.default, _aten.view.default, _aten.reshape.default, _aten.slice.Tensor, _aten.select.int,
    _aten.unsqueeze.default, _aten.contiguous.default, _aten.clone.default, _aten.transpose.int, _aten.permute.default,
    _aten.movedim.int, _aten.alias.default, _aten.repeat.default, _aten.detach.default, _aten.squeeze.dim,
    _aten.to.dtype, _aten.to.dtype_layout, _aten._to_copy.default, _aten.lift_fresh_copy.default,
}  # fmt: skip
"""Operators that move and copy what is in their first argument."""
_STEPWISE = {
    _aten.relu.default, _aten.sigmoid.default, _aten.tanh.default, _aten.silu.default, _aten.gelu.default,
    _aten.softplus.default, _aten.exp.default, _aten.neg.default, _aten.dropout.default, _aten.contiguous.default,
    _aten.clone.default, _aten.linear.default,
}  # fmt: skip
"""Operators that compute each timestep of their first argument x[B, T, F] by itself; all else they take are weights."""
_BESIDE = _KEEP_VALUES | {
    _ours.mask_padding.default, _ours.last_timestep.default, _ours.reverse_sequence.default,
    _aten.embedding.default, _aten.gather.default, _aten.index.Tensor, _aten.index_select.default,
    _aten.where.self, _aten.where.ScalarSelf, _aten.where.ScalarOther,
    _aten.masked_fill.Scalar, _aten.masked_fill.Tensor, _aten.flip.default, _aten.new_zeros.default,
    _aten.zeros_like.default, _aten.new_full.default, _aten.new_ones.default, _aten.ones_like.default,
    _aten.cat.default, _aten.stack.default, _aten.split.Tensor, _aten.split_with_sizes.default, _aten.chunk.default,
    _aten.roll.default,
}  # fmt: skip
"""Operators that choose and move numbers, which the CPU does where the device does not."""
_PAIRWISE = {_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor}
"""Operators that do so with both of their arguments."""

_NEED_CELL = 8
"""Its place among the LSTM's arguments."""
_MOST_STEPS = 32
"""Of an LSTM that is written out: each is a second of compiling and more to keep on the accelerator."""
_linear = torch.nn.functional.linear
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_TORCH = Path(torch.__file__).parent


def recurrence_refusal(node: torch.fx.Node) -> str | None:
    """Why Vollo cannot take a recurrence of an exported program; None where it can, or `node` is none."""
    if node.target is _RNN:
        return f"its compiler has no {node.args[4]}, but LSTMs"
    return _wanting(node) if node.target is _LSTM else None


def _wanting(node: torch.fx.Node) -> str | None:
    _, _, h_0, c_0, weights, _, _, both, _ = node.args
    if _tensor(h_0).shape[2] != _tensor(c_0).shape[2]:
        return "its LSTMs know no proj_size"
    if both and _needs_steps(node):
        return "a bidirectional LSTM can neither be handed a state nor give its cell state at the end (c_n)"
    if not all(isinstance(weight, torch.fx.Node) and weight.op == "placeholder" for weight in _flat(weights)):
        return "the weights of its LSTMs are constants, and these are computed"
    return None


def _tensor(node: Any) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"]
    return value


def _needs_steps(node: torch.fx.Node) -> bool:
    """Whether an LSTM begins with anything but zeros, or its cell state at the end is read."""
    begins = all(isinstance(state, torch.fx.Node) and _is_zero(state) for state in node.args[2:4])
    return not begins or any(user.args[1] == 2 and user.users for user in node.users)


def _is_zero(node: torch.fx.Node) -> bool:
    """Whether a tensor is known to hold zeros alone."""
    if node.target in _ZEROS:
        return True
    if node.target in _FULL:
        return bool(node.args[_FULL[node.target]] == 0)
    return node.target in _KEEP_VALUES and isinstance(node.args[0], torch.fx.Node) and _is_zero(node.args[0])


def reject_recurrences(program: torch.export.ExportedProgram) -> None:
    """Refuse a program with a recurrence that Vollo cannot take.

    Raises:
        CompileError: says why, and on which line of the model.
    """
    for node in program.graph.nodes:
        if reason := recurrence_refusal(node):
            raise CompileError(f"Vollo cannot take {_name(node)}{_line(node)}: {reason}")


def reject_operators(fixed: torch.export.ExportedProgram, program: torch.export.ExportedProgram) -> None:
    """Refuse a rewritten program that computes what neither Vollo nor the CPU beside it does.

    Raises:
        CompileError: says what, and why, and on which line of the model, as `program` has it.
    """
    lines = {str(node.target): _line(node) for node in reversed(program.graph.nodes)}
    refused = {str(node.target): reason for node in fixed.graph.nodes if (reason := operator_refusal(node))}
    if refused:
        named = "; ".join(f"{name}{lines.get(name, '')}: {reason}" for name, reason in refused.items())
        raise CompileError(f"Vollo cannot take {named}. `partitioner_config: {{}}` leaves such operators to the CPU")


def operator_refusal(node: torch.fx.Node) -> str | None:
    """Why Vollo cannot take an operator that is no recurrence; None where it can, or where the CPU beside it does.

    That is for whatever depends on lengths and ids, and for moving numbers about.
    """
    if not isinstance(node.target, torch._ops.OpOverload) or node.target in (_LSTM, _RNN) or node.target in _BESIDE:
        return None
    taken = [value for one in node.all_input_nodes for value in _tensors(one)]
    fractions = all(value.is_floating_point() for value in taken)
    return refusal(node) if taken and fractions and any(one.is_floating_point() for one in _tensors(node)) else None


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    return [value for value in _flat(node.meta.get("val")) if isinstance(value, torch.Tensor)]


def rewrite_program(fixed: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """A program of fixed sizes, without a recurrence that Vollo refuses, with what it takes in place of every LSTM.

    Raises:
        CompileError: an LSTM has to be written out step by step, and has too many.
    """
    for node in fixed.graph.nodes:
        if node.target is _LSTM:
            node.update_arg(_NEED_CELL, _needs_steps(node))
            _check_steps(node)
    with _quiet():
        program: torch.export.ExportedProgram = fixed.run_decompositions({_LSTM: _lstm})
    graph = program.graph_module.graph
    _take_from_stacks(graph)
    graph.eliminate_dead_code()
    _leave_out_zeros(graph)
    graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program


def _check_steps(node: torch.fx.Node) -> None:
    steps = _tensor(node.args[0]).shape[1]
    if node.args[_NEED_CELL] and steps > _MOST_STEPS:
        raise CompileError(
            f"Vollo's LSTMs take no state and give none, so this one is written out step by step, and {steps} steps "
            f"are too many: use lengths of up to {_MOST_STEPS}, or a model that begins with zeros and leaves c_n alone"
        )


def _lstm(
    x: Any, lengths: Any, h_0: Any, c_0: Any, weights: Any, bias: bool, layers: int, both: bool, stepwise: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The abstract operator, layer by layer; what was `need_cell` says now whether it is to be written out."""
    if stepwise:
        return _written_out(x, lengths, h_0, c_0, weights, layers)
    size = len(weights) // layers
    finals: list[torch.Tensor] = []
    for index in range(layers):
        own = weights[index * size : (index + 1) * size]
        x, ends = (_two_directions if both else _one_direction)(x, lengths, own, bias)
        finals += ends
    y = x if lengths is None else _ours.mask_padding(x, lengths)
    return y, torch.stack(finals), torch.zeros_like(c_0)


def _written_out(
    x: torch.Tensor, lengths: Any, h_0: torch.Tensor, c_0: torch.Tensor, weights: Any, layers: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All layers in one direction, one timestep after the other. A row that has ended keeps its state."""
    size, steps = len(weights) // layers, x.shape[1]
    runs = None
    if lengths is not None and steps > 1:
        runs, x = _still_running(lengths, steps, x.dtype), _ours.mask_padding(x, lengths)  # 0 x inf is not 0
    finals: list[tuple[torch.Tensor, torch.Tensor]] = []
    for index in range(layers):
        w_ih, w_hh, b_ih, b_hh = (*weights[index * size : (index + 1) * size], None, None)[:4]
        state = h_0[index], c_0[index]
        given = []
        for step in range(steps):
            gates = _linear(x[:, step], w_ih, b_ih) + _linear(state[0], w_hh, b_hh)
            after = _cell(gates, state[1])
            state = after if runs is None else _chosen(runs[0][:, step], runs[1][:, step], after, state)
            given.append(after[0])
        x = torch.stack(given, 1)
        finals.append(state)
    y = x if lengths is None else _ours.mask_padding(x, lengths)
    return y, torch.stack([h for h, _ in finals]), torch.stack([c for _, c in finals])


def _still_running(lengths: torch.Tensor, steps: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, T, 1] each: 1 on real timesteps, and 1 on the others."""
    real = (torch.arange(steps)[None, :] < lengths[:, None])[:, :, None]
    return real.to(dtype), (~real).to(dtype)


def _cell(gates: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One timestep, from the gates' sums [B, 4*H] in torch's order."""
    size = c.shape[1]
    i, f, g, o = (gates[:, at * size : (at + 1) * size] for at in range(4))
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _chosen(
    real: torch.Tensor, ended: torch.Tensor, after: tuple[torch.Tensor, torch.Tensor], before: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The state after a step, of rows that have ended the one before; 1 and 0 choose exactly in any precision."""
    h, c = (real * new + ended * old for new, old in zip(after, before, strict=True))
    return h, c


def _one_direction(x: Any, lengths: Any, weights: Any, bias: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
    y = _ours.vollo_lstm(x, weights, bias, False)
    return y, [y[:, -1] if lengths is None else _ours.last_timestep(y, lengths)]


def _two_directions(x: Any, lengths: Any, weights: Any, bias: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
    half, hidden = len(weights) // 2, weights[1].shape[1]
    if lengths is None:
        y = _ours.vollo_lstm(x, weights, bias, True)
        return y, [y[:, -1, :hidden], y[:, 0, hidden:]]
    onward = _ours.vollo_lstm(x, weights[:half], bias, False)
    back = _ours.vollo_lstm(_ours.reverse_sequence(x, lengths), weights[half:], bias, False)
    y = torch.cat([onward, _ours.reverse_sequence(back, lengths)], 2)
    return y, [_ours.last_timestep(onward, lengths), _ours.last_timestep(back, lengths)]


def _take_from_stacks(graph: torch.fx.Graph) -> None:
    """Where one of several states is taken, take that alone: the others need not leave the device."""
    for node in list(graph.nodes):
        if node.target is not _aten.select.int or node.args[1] != 0:
            continue
        stack, index = node.args[0], node.args[2]
        if isinstance(stack, torch.fx.Node) and stack.target is _aten.stack.default and len(stack.args) == 1:
            parts = stack.args[0]
            assert isinstance(parts, Sequence)
            assert isinstance(index, int)
            node.replace_all_uses_with(parts[index])


def _leave_out_zeros(graph: torch.fx.Graph) -> None:
    """Give what lies below `mask_padding` to those who cannot tell the difference."""
    for node in graph.nodes:
        if node.target is _MASK_PADDING:
            value, lengths = node.args
            for user in list(node.users):
                if user.op != "output" and _cannot_tell(user, node, lengths, set()):
                    user.replace_input_with(node, value)


def _cannot_tell(user: torch.fx.Node, value: torch.fx.Node, lengths: Any, seen: set[torch.fx.Node]) -> bool:
    """Whether what `user` makes of `value` is the same on real timesteps, and none of its readers sees the others.

    Answers are cut to their real timesteps, so an output sees none of the others.
    """
    if user.op == "output" or user in seen:
        return True
    seen.add(user)
    if user.target in (_ours.last_timestep.default, _ours.reverse_sequence.default, _MASK_PADDING):
        return user.args[1] is lengths
    if user.target is _VOLLO_LSTM:
        return user.args[3] is False and _read_as_far(user, lengths, seen)
    stepwise = user.target in _STEPWISE or _is_over_features(user)
    alone = stepwise and user.args[0] is value and user.all_input_nodes.count(value) == 1
    if not (alone or (user.target in _PAIRWISE and _shape(user) == _shape(value))):
        return False
    return _read_as_far(user, lengths, seen)


def _is_over_features(node: torch.fx.Node) -> bool:
    """Whether an operator mixes the last dimension of x[B, T, F] alone."""
    if node.target is _aten.layer_norm.default:
        return len(_flat(node.args[1])) == 1
    return node.target in (_aten.softmax.int, _aten.log_softmax.int) and node.args[1] in (-1, len(_shape(node)) - 1)


def _read_as_far(node: torch.fx.Node, lengths: Any, seen: set[torch.fx.Node]) -> bool:
    return all(_cannot_tell(reader, node, lengths, seen) for reader in node.users)


def _shape(node: torch.fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _flat(nodes: Any) -> list[Any]:
    return list(nodes) if isinstance(nodes, (list, tuple)) else [nodes]


def _name(node: torch.fx.Node) -> str:
    return str(node.args[4]) if node.target is _RNN else "an LSTM"


def _line(node: torch.fx.Node) -> str:
    """Where the model asks for it, as far as the exporter wrote it down: the innermost frame that is not torch's."""
    for match in reversed(list(_FRAME.finditer(node.meta.get("stack_trace") or ""))):
        if not Path(match["file"]).is_relative_to(_TORCH):
            return f" (at {Path(match['file']).name}:{match['line']})"
    return ""


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its internals
        yield

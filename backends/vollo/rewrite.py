"""Rewriting of programs for Vollo: plain LSTMs, with the length-dependent steps around them.

An LSTM with an initial state, or whose final cell state is read, is unrolled step by step, because Vollo's own LSTM has
no state as input or output.

An LSTM's output must be zero at padding if anything depends on it there. If nothing does, the mask is removed, so that
layers and the timestep-wise operators after them stay in one program of the device. That is so for operators on single
timesteps of an output with a time dimension, for another layer with the same lengths, and for each row's last timestep.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..exported_program import quiet
from ..interface import CompileError
from . import operators as _operators  # noqa: F401  registers them
from .translate import as_list, refusal

_aten = torch.ops.aten
_ours = torch.ops.neuron_lstm
_LSTM = _ours.lstm.default
_RNN = _ours.rnn.default
_VOLLO_LSTM = _ours.vollo_lstm.default
_MASK_PADDING = _ours.mask_padding.default

_ZEROS = {_aten.zeros.default, _aten.new_zeros.default, _aten.zeros_like.default}
_FULL = {_aten.full.default: 1, _aten.new_full.default: 2}
"""Operators with a fill value, and its position among their arguments."""
_KEEP_VALUES = {
    _aten.expand.default, _aten.view.default, _aten.reshape.default, _aten.slice.Tensor, _aten.select.int,
    _aten.unsqueeze.default, _aten.contiguous.default, _aten.clone.default, _aten.transpose.int, _aten.permute.default,
    _aten.movedim.int, _aten.alias.default, _aten.repeat.default, _aten.detach.default, _aten.squeeze.dim,
    _aten.to.dtype, _aten.to.dtype_layout, _aten._to_copy.default, _aten.lift_fresh_copy.default,
}  # fmt: skip
"""Operators that move and copy the values of their first argument."""
_STEPWISE = {
    _aten.relu.default, _aten.sigmoid.default, _aten.tanh.default, _aten.silu.default, _aten.gelu.default,
    _aten.softplus.default, _aten.exp.default, _aten.neg.default, _aten.dropout.default, _aten.contiguous.default,
    _aten.clone.default, _aten.linear.default,
}  # fmt: skip
"""Operators on single timesteps of their first argument x[B, T, F]; other arguments are weights."""
_BESIDE = _KEEP_VALUES | {
    _ours.mask_padding.default, _ours.last_timestep.default, _ours.reverse_sequence.default,
    _aten.embedding.default, _aten.gather.default, _aten.index.Tensor, _aten.index_select.default,
    _aten.where.self, _aten.where.ScalarSelf, _aten.where.ScalarOther,
    _aten.masked_fill.Scalar, _aten.masked_fill.Tensor, _aten.flip.default, _aten.new_zeros.default,
    _aten.zeros_like.default, _aten.new_full.default, _aten.new_ones.default, _aten.ones_like.default,
    _aten.cat.default, _aten.stack.default, _aten.split.Tensor, _aten.split_with_sizes.default, _aten.chunk.default,
    _aten.roll.default,
}  # fmt: skip
"""Operators that select and move data, which the CPU runs if the device does not."""
_PAIRWISE = {_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor}
"""Operators on single timesteps of both of their arguments."""

_NEED_CELL = 8
"""Position of `need_cell` among the LSTM's arguments."""
_MOST_STEPS = 32
"""Most steps of an unrolled LSTM: each adds a second of compilation, and space on the accelerator."""
_linear = torch.nn.functional.linear
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_TORCH = Path(torch.__file__).parent


def recurrence_refusal(node: torch.fx.Node) -> str | None:
    """Return why Vollo does not support a recurrence; None if it does, or if `node` is not a recurrence."""
    if node.target is _RNN:
        return f"its compiler supports no {node.args[4]}, only LSTMs"
    if node.target is not _LSTM:
        return None
    _, _, h_0, c_0, weights, _, _, both, _ = node.args
    if _shape(h_0)[2] != _shape(c_0)[2]:
        return "its LSTMs support no proj_size"
    if both and _needs_steps(node):
        return "its bidirectional LSTMs have no initial state (h_0, c_0) and no final cell state (c_n)"
    if not all(isinstance(weight, torch.fx.Node) and weight.op == "placeholder" for weight in as_list(weights)):
        return "its LSTMs support only constant weights, and these are computed"
    return None


def _needs_steps(node: torch.fx.Node) -> bool:
    """Whether an LSTM has an initial state other than zeros, or its final cell state is read."""
    zero_state = all(isinstance(state, torch.fx.Node) and _is_zero(state) for state in node.args[2:4])
    return not zero_state or any(user.args[1] == 2 and user.users for user in node.users)


def _is_zero(node: torch.fx.Node) -> bool:
    if node.target in _ZEROS:
        return True
    if node.target in _FULL:
        return bool(node.args[_FULL[node.target]] == 0)
    return node.target in _KEEP_VALUES and isinstance(node.args[0], torch.fx.Node) and _is_zero(node.args[0])


def reject_recurrences(program: torch.export.ExportedProgram) -> None:
    """Refuse a program with a recurrence that Vollo does not support.

    Raises `CompileError`: the message has the reason and the line of the model.
    """
    for node in program.graph.nodes:
        if reason := recurrence_refusal(node):
            name = node.args[4] if node.target is _RNN else "an LSTM"
            raise CompileError(f"Vollo does not support {name}{_source_suffix(node)}: {reason}")


def reject_operators(fixed: torch.export.ExportedProgram, program: torch.export.ExportedProgram) -> None:
    """Refuse a rewritten program with an operator that neither Vollo nor the CPU beside it runs.

    Raises `CompileError`: the message has the operator, the reason, and the line of the model, as `program` has it.
    """
    lines = {str(node.target): _source_suffix(node) for node in reversed(program.graph.nodes)}
    refused = {str(node.target): reason for node in fixed.graph.nodes if (reason := operator_refusal(node))}
    if refused:
        named = "; ".join(f"{name}{lines.get(name, '')}: {reason}" for name, reason in refused.items())
        raise CompileError(f"Vollo does not support {named}. `partitioner_config: {{}}` runs such operators on the CPU")


def operator_refusal(node: torch.fx.Node) -> str | None:
    """Return why an operator is not supported; None if the device or the CPU runs it, or for recurrences.

    The CPU runs operators that depend on lengths and ids, and operators that only move data.
    """
    if not isinstance(node.target, torch._ops.OpOverload) or node.target in (_LSTM, _RNN) or node.target in _BESIDE:
        return None
    inputs = [value for one in node.all_input_nodes for value in _tensors(one)]
    floating = all(value.is_floating_point() for value in inputs)
    return refusal(node) if inputs and floating and any(one.is_floating_point() for one in _tensors(node)) else None


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    return [value for value in as_list(node.meta.get("val")) if isinstance(value, torch.Tensor)]


def rewrite_program(fixed: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Rewrite a program of fixed sizes with Vollo's operators in place of every LSTM.

    `reject_recurrences` must have accepted it.

    Raises `CompileError`: an LSTM must be unrolled and has too many timesteps.
    """
    for node in fixed.graph.nodes:
        if node.target is _LSTM:
            node.update_arg(_NEED_CELL, _needs_steps(node))
            steps = _shape(node.args[0])[1]
            if node.args[_NEED_CELL] and steps > _MOST_STEPS:
                raise CompileError(
                    "Vollo's LSTMs have no state as input or output, so this one is unrolled step by step, and "
                    f"{steps} steps are too many: use lengths of up to {_MOST_STEPS}, or a model without h_0, c_0 and "
                    "c_n"
                )
    with quiet():
        program: torch.export.ExportedProgram = fixed.run_decompositions({_LSTM: _lstm})
    graph = program.graph_module.graph
    _forward_stacked_states(graph)
    graph.eliminate_dead_code()
    _remove_unread_masks(graph)
    graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program


def _lstm(
    x: Any, lengths: Any, h_0: Any, c_0: Any, weights: Any, bias: bool, layers: int, both: bool, stepwise: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Decompose the abstract operator by layers; its argument `need_cell` now says whether to unroll it."""
    if stepwise:
        return _unrolled(x, lengths, h_0, c_0, weights, layers)
    size = len(weights) // layers
    finals: list[torch.Tensor] = []
    for index in range(layers):
        own = weights[index * size : (index + 1) * size]
        x, ends = (_two_directions if both else _one_direction)(x, lengths, own, bias)
        finals += ends
    y = x if lengths is None else _ours.mask_padding(x, lengths)
    return y, torch.stack(finals), torch.zeros_like(c_0)


def _unrolled(
    x: torch.Tensor, lengths: Any, h_0: torch.Tensor, c_0: torch.Tensor, weights: Any, layers: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute all layers in one direction step by step. A row that has ended keeps its state."""
    size, steps = len(weights) // layers, x.shape[1]
    masks = None
    if lengths is not None and steps > 1:
        real = (torch.arange(steps)[None, :] < lengths[:, None])[:, :, None]
        masks = real.to(x.dtype), (~real).to(x.dtype)  # [B, T, 1]: 1 at real timesteps, and 1 at padding
        x = _ours.mask_padding(x, lengths)  # 0 x inf is not 0
    finals: list[tuple[torch.Tensor, torch.Tensor]] = []
    for index in range(layers):
        w_ih, w_hh, b_ih, b_hh = (*weights[index * size : (index + 1) * size], None, None)[:4]
        state = h_0[index], c_0[index]
        outputs = []
        for step in range(steps):
            after = _cell(_linear(x[:, step], w_ih, b_ih) + _linear(state[0], w_hh, b_hh), state[1])
            outputs.append(after[0])
            if masks is not None:  # factors 1 and 0 are exact in any precision
                real, ended = masks[0][:, step], masks[1][:, step]
                h, c = (real * new + ended * old for new, old in zip(after, state, strict=True))
                after = h, c
            state = after
        x = torch.stack(outputs, 1)
        finals.append(state)
    y = x if lengths is None else _ours.mask_padding(x, lengths)
    return y, torch.stack([h for h, _ in finals]), torch.stack([c for _, c in finals])


def _cell(gates: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute one timestep from the gates' sums [B, 4*H] in torch's order."""
    size = c.shape[1]
    i, f, g, o = (gates[:, at * size : (at + 1) * size] for at in range(4))
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _one_direction(x: Any, lengths: Any, weights: Any, bias: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
    y = _ours.vollo_lstm(x, weights, bias, False)
    return y, [y[:, -1] if lengths is None else _ours.last_timestep(y, lengths)]


def _two_directions(x: Any, lengths: Any, weights: Any, bias: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
    half, hidden = len(weights) // 2, weights[1].shape[1]
    if lengths is None:
        y = _ours.vollo_lstm(x, weights, bias, True)
        return y, [y[:, -1, :hidden], y[:, 0, hidden:]]
    forward = _ours.vollo_lstm(x, weights[:half], bias, False)
    backward = _ours.vollo_lstm(_ours.reverse_sequence(x, lengths), weights[half:], bias, False)
    y = torch.cat([forward, _ours.reverse_sequence(backward, lengths)], 2)
    return y, [_ours.last_timestep(forward, lengths), _ours.last_timestep(backward, lengths)]


def _forward_stacked_states(graph: torch.fx.Graph) -> None:
    """Replace the selection of one of several stacked states: the others need not leave the device."""
    for node in list(graph.nodes):
        if node.target is not _aten.select.int or node.args[1] != 0:
            continue
        stack, index = node.args[0], node.args[2]
        if isinstance(stack, torch.fx.Node) and stack.target is _aten.stack.default and len(stack.args) == 1:
            parts = stack.args[0]
            assert isinstance(parts, Sequence)
            assert isinstance(index, int)
            node.replace_all_uses_with(parts[index])


def _remove_unread_masks(graph: torch.fx.Graph) -> None:
    """Remove `mask_padding` in front of users whose results do not depend on padding."""
    for node in graph.nodes:
        if node.target is _MASK_PADDING:
            value, lengths = node.args
            for user in list(node.users):
                if user.op != "output" and _ignores_padding(user, node, lengths, set()):
                    user.replace_input_with(node, value)


def _ignores_padding(user: torch.fx.Node, value: torch.fx.Node, lengths: Any, seen: set[torch.fx.Node]) -> bool:
    """Whether no real timestep of `user`, nor of the users after it, depends on the padding of `value`.

    Outputs are cut to their real timesteps, so they do not depend on padding.
    """
    if user.op == "output" or user in seen:
        return True
    seen.add(user)
    if user.target in (_ours.last_timestep.default, _ours.reverse_sequence.default, _MASK_PADDING):
        return user.args[1] is lengths
    if user.target is _VOLLO_LSTM:
        return user.args[3] is False and _users_ignore_padding(user, lengths, seen)
    stepwise = user.target in _STEPWISE or _is_over_features(user)
    alone = stepwise and user.args[0] is value and user.all_input_nodes.count(value) == 1
    if not (alone or (user.target in _PAIRWISE and _shape(user) == _shape(value))):
        return False
    return _users_ignore_padding(user, lengths, seen)


def _is_over_features(node: torch.fx.Node) -> bool:
    """Whether an operator mixes only the last dimension of x[B, T, F]."""
    if node.target is _aten.layer_norm.default:
        return len(as_list(node.args[1])) == 1
    return node.target in (_aten.softmax.int, _aten.log_softmax.int) and node.args[1] in (-1, len(_shape(node)) - 1)


def _users_ignore_padding(node: torch.fx.Node, lengths: Any, seen: set[torch.fx.Node]) -> bool:
    return all(_ignores_padding(reader, node, lengths, seen) for reader in node.users)


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _source_suffix(node: torch.fx.Node) -> str:
    """Return the line of the model, if the exporter recorded it: the innermost frame outside of torch."""
    for match in reversed(list(_FRAME.finditer(node.meta.get("stack_trace") or ""))):
        if not Path(match["file"]).is_relative_to(_TORCH):
            return f" (at {Path(match['file']).name}:{match['line']})"
    return ""

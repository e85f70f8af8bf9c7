"""Streaming: models that support sessions, and the compatibility of their states."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import torch

from ..errors import LoweringError, source_suffix
from ..exported_graph import user_inputs
from ..program import LoweredModel

_HALF_BYTES = 8


def check_streamable(program: LoweredModel) -> None:
    """Refuse a model whose outputs need more than the timesteps received so far, or their number.

    Raises `LoweringError`: names the line of the model.
    """
    if program.chunked is None:
        raise LoweringError(
            "streaming: the outputs of a chunk depend on other timesteps that cannot be carried to it: "
            f"{program.chunking_reason}; remove `streaming`, or change the model"
        )
    if program.bound is not None:
        raise LoweringError(
            "streaming: forward() does something else at some numbers of timesteps beyond the longest bucket"
            f"{source_suffix(program.bound.line)}, which a session may reach; remove `streaming`, or write code that "
            "is the same for every number of timesteps"
        )
    start = program.chunked.start
    lengths = None if start is None else user_inputs(start)[-1]
    if lengths is not None and any(user.target is not torch.ops.aten.sym_size.int for user in lengths.users):
        raise LoweringError(
            "streaming: the initial state is computed from the length of the sequence, which is known only at its end; "
            "remove `streaming`, or use an initial state that does not depend on the length"
        )


def state_compatibility_id(program: LoweredModel, weights: Iterable[str]) -> str:
    """Identify the states of a model: models with equal ids can resume each other's sessions.

    The first half digests the programs, the second half the weights; `weights` are the digests of the files. The engine
    and the grid do not matter.
    """
    assert program.chunked is not None
    digest = blake2b(digest_size=_HALF_BYTES)
    states = [(value.spec.dtype, value.spec.shape, value.fill) for value in program.chunked.carried]
    inputs = [(spec.name, spec.dtype, spec.shape) for spec in program.inputs]
    digest.update(repr((states, inputs)).encode())
    for role, part in program.chunked.parts.items():
        # The text of a graph has neither the names of its weights nor the graphs that it calls, as for a loop's step.
        digest.update(f"{role} {part.graph_signature}".encode())
        for name, graph in part.graph_module.named_modules(remove_duplicate=False):
            digest.update(f"{name} {graph.code}".encode())
    for name, tensor in sorted(program.constants.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return with_weight_digests(digest.hexdigest(), weights)


def with_weight_digests(state: str, weights: Iterable[str]) -> str:
    """Return the `state_compatibility_id` of the same model with other weights.

    >>> with_weight_digests("0123456789abcdef" * 2, []) == with_weight_digests("0123456789abcdef" + "0" * 16, [])
    True
    """
    digest = blake2b("".join(weights).encode(), digest_size=_HALF_BYTES)
    return state[: 2 * _HALF_BYTES] + digest.hexdigest()

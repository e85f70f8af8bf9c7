"""Whether a model can be served as a stream, and which models can go on from each other's sessions."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import torch

from .errors import LoweringError
from .program import LoweredModel

_HALF_BYTES = 8


def check_streamable(program: LoweredModel) -> None:
    """Refuse a model whose answers need more than the timesteps so far.

    Raises:
        LoweringError: with the line of the model.
    """
    if program.chunked is None:
        raise LoweringError(
            f"streaming: a piece of a sequence cannot be answered before the rest of it is there, for "
            f"{program.chunking_reason}; leave `streaming` out, or write the model without it"
        )
    start = program.chunked.start
    if start is not None and _reads_lengths(start):
        raise LoweringError(
            "streaming: what a sequence begins with is computed from its length, which is not known before its end; "
            "leave `streaming` out, or begin with what does not depend on it"
        )


def _reads_lengths(start: torch.export.ExportedProgram) -> bool:
    """Whether the last input is more than a way to count the rows."""
    name = start.graph_signature.user_inputs[-1]
    (lengths,) = (node for node in start.graph.nodes if node.op == "placeholder" and node.name == name)
    return any(user.target is not torch.ops.aten.sym_size.int for user in lengths.users)


def state_compatibility_id(program: LoweredModel, weights: Iterable[str]) -> str:
    """Equal for models that can go on from each other's sessions, whatever engine and grid they are served with.

    They compute the same piece, which the first half tells, with the same weights, which the second half tells;
    `weights` are the digests of the files.
    """
    assert program.chunked is not None
    digest = blake2b(digest_size=_HALF_BYTES)
    for value in program.chunked.carried:
        digest.update(f"{value.spec.dtype} {value.spec.shape} {value.fill};".encode())
    digest.update(program.chunked.chunk.graph_module.code.encode())
    for name, tensor in sorted(program.constants.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return with_weight_digests(digest.hexdigest(), weights)


def with_weight_digests(state: str, weights: Iterable[str]) -> str:
    """What `state_compatibility_id` says of the same model with other weights.

    >>> with_weight_digests("0123456789abcdef" * 2, []) == with_weight_digests("0123456789abcdef" + "0" * 16, [])
    True
    """
    digest = blake2b("".join(weights).encode(), digest_size=_HALF_BYTES)
    return state[: 2 * _HALF_BYTES] + digest.hexdigest()

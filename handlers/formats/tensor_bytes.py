"""The bytes of a tensor, in row-major order and this machine's byte order, without numpy."""

from __future__ import annotations

import torch


def to_bytes(tensor: torch.Tensor, before: bytes = b"") -> bytes:
    """Return the bytes of a tensor, with others before them.

    >>> to_bytes(torch.tensor([[1, 2], [3, 256]], dtype=torch.int16)).hex()
    '0100020003000001'
    """
    content = bytearray(before)
    if tensor.numel() > 0:
        content += bytes(tensor.numel() * tensor.element_size())
        torch.frombuffer(content, dtype=tensor.dtype, offset=len(before)).copy_(tensor.detach().reshape(-1))
    return bytes(content)


def from_bytes(content: bytearray, dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
    """Return the flat tensor of the bytes from `offset` on, which share its memory.

    A byte of a bool may have any value but 0 for true; torch knows only 1.

    Raises:
        ValueError: they are no whole number of elements.
    """
    if offset == len(content):
        return torch.empty(0, dtype=dtype)
    if dtype == torch.bool:
        return torch.frombuffer(content, dtype=torch.uint8, offset=offset) != 0
    return torch.frombuffer(content, dtype=dtype, offset=offset)

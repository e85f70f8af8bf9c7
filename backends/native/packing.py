"""Weights as the recurrent library reads them: their order, huge pages for them, and the processor's tile registers.

For a block of as many hidden units as a register holds: for each input, the weights of one gate after those of the
other. The last block is padded with zeros. The new state of a GRU needs the product with the state separately, so a GRU
has four sums: r, z, the sum over the inputs, the sum over the state. The outputs of a projection are in registers too,
several of which stand in the place of gates.

A huge page takes one entry of the processor's TLB in place of 512. With few rows most of the time is reading weights. A
single row of 128 -> 256 x 2 takes 3 to 5 % less time, and 5 to 10 % less after a pause.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import accumulate

import torch

from ..interface import LoadError

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.bfloat16)
_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
SUMS = {"lstm": 4, "gru": 4, "rnn_tanh": 1, "rnn_relu": 1}
"""Sums of a unit, by cell."""


FLOAT32, FLOAT16, BFLOAT16_PAIRS, BFLOAT16_TILES, INT8, INT8_QUADS = range(6)
"""Weights of recurrences in memory; two inputs make a pair, four a quad, 32 a tile."""
_MULTIPLES = (1, 1, 2, 32, 1, 4)
"""The inputs of each kind are padded with zeros to a multiple of this number."""
_TOGETHER = (1, 1, 2, 2, 1, 4)
"""Inputs whose weights of one unit are side by side."""
_LARGEST_INT8 = 127
_MOST_INT8_INPUTS = 65536
"""Inputs whose products with numbers of 0 to 255 are summed in 32 bits."""
_OFFSET = 128
"""Added to the numbers of a row, which the processor takes without a sign."""


def pack_recurrence(
    cell: str, weights: Sequence[torch.Tensor], lanes: int, interleave: int, kind: int = FLOAT32
) -> tuple[torch.Tensor, ...]:
    """Pack W_ih, W_hh, the biases and, with a projection, W_hr of one layer.

    Its flat weights are `w_ih, w_hh[, b_ih, b_hh][, w_hr]`. `lanes` is the number of units of a block, `interleave` the
    number of gates whose weights are interleaved, `kind` one of the constants above.

    Raises `LoadError`: a weight is larger than float16 holds, or int8 has too many inputs for sums of 32 bits.

    >>> w_ih, w_hh = torch.arange(6.0).view(3, 2), torch.zeros(3, 3)
    >>> pack_recurrence("rnn_tanh", [w_ih, w_hh], lanes=2, interleave=1)[0]
    tensor([[0., 2., 1., 3.],
            [4., 0., 5., 0.]])
    """
    w_ih, w_hh, *biases = weights
    projection = [_projection(biases.pop(), lanes, interleave, kind)] if has_projection(weights) else []
    b_ih, b_hh = biases or [w_ih.new_zeros(w_ih.shape[0])] * 2
    from_input, from_state = (_blocks(weight, _GATES[cell], lanes, interleave, kind) for weight in (w_ih, w_hh))
    return from_input, from_state, _units(_sums(cell, b_ih, b_hh), lanes), *projection


def has_projection(weights: Sequence[torch.Tensor]) -> bool:
    """Whether the flat weights of one layer in one direction end with those of a projection."""
    return len(weights) % 2 == 1


def _projection(weight: torch.Tensor, lanes: int, interleave: int, kind: int) -> torch.Tensor:
    """[P, H] -> [1, vectors*H*lanes], vectors of outputs in groups of `interleave`."""
    padded = _pad_units(weight[None], lanes)[0]
    return _blocks(padded, len(padded) // lanes, lanes, interleave, kind)


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pack a linear layer's `weight[O, K]` and `bias[O]` for blocks of this many outputs."""
    biases = weight.new_zeros(weight.shape[0]) if bias is None else bias
    return _blocks(weight, 1, block, 1), _units(biases[None], block)


def _sums(cell: str, b_ih: torch.Tensor, b_hh: torch.Tensor) -> torch.Tensor:
    """The bias of each sum of each unit: [S, H]."""
    own, of_state = (bias.view(_GATES[cell], -1) for bias in (b_ih, b_hh))
    return torch.cat([own[:2] + of_state[:2], own[2:], of_state[2:]]) if cell == "gru" else own + of_state


def _blocks(weight: torch.Tensor, gates: int, lanes: int, interleave: int, kind: int = FLOAT32) -> torch.Tensor:
    """[G*H, K] -> [blocks, G*K*lanes], gates in groups of `interleave`: each group, input, gate, unit.

    Of pairs, tiles and quads, K is rounded up to 2, 32 and 4; the inputs of a pair or quad come last.
    With int8, the scales of a group and the sums of its weights follow its weights.
    """
    if kind in {INT8, INT8_QUADS}:
        return _quantized_blocks(weight, gates, lanes, interleave, kind)
    return _rounded(torch.cat(_groups(weight, gates, lanes, interleave, kind), 1).contiguous(), kind)


def _groups(weight: torch.Tensor, gates: int, lanes: int, interleave: int, kind: int) -> list[torch.Tensor]:
    """[G*H, K] -> the weights of each group of gates, [blocks, K*gates of the group*lanes]."""
    missing = -weight.shape[1] % _MULTIPLES[kind]
    if missing:
        weight = torch.cat([weight, weight.new_zeros(len(weight), missing)], 1)
    inputs, each = weight.shape[1], _TOGETHER[kind]
    padded = _pad_units(weight.view(gates, -1, inputs), lanes).view(gates, -1, lanes, inputs // each, each)
    groups = (padded[gate : gate + interleave] for gate in range(0, gates, interleave))
    return [group.permute(1, 3, 0, 2, 4).flatten(1) for group in groups]


def _quantized_blocks(weight: torch.Tensor, gates: int, lanes: int, interleave: int, kind: int) -> torch.Tensor:
    """Quantize the weights of each unit of a gate by its largest one, symmetrically."""
    if weight.shape[1] > _MOST_INT8_INPUTS:
        raise LoadError(
            f"a recurrence of {weight.shape[1]} inputs has too many for int8 ({_MOST_INT8_INPUTS}): package the model "
            f"with precision: float32"
        )
    scales = weight.abs().amax(1) / _LARGEST_INT8 if weight.shape[1] else weight.new_zeros(len(weight))
    rounded = (weight / torch.where(scales > 0, scales, 1)[:, None]).round().to(torch.int8)
    added = _OFFSET * rounded.sum(1, dtype=torch.int32)
    groups = _groups(rounded, gates, lanes, interleave, kind)
    of_groups = zip(groups, *(_units(values.view(gates, -1), lanes).split(interleave, 1) for values in (scales, added)))
    parts = [part.flatten(1).contiguous() for group in of_groups for part in group]
    return torch.cat([part.view(torch.int8) for part in parts], 1).contiguous()


def _rounded(packed: torch.Tensor, kind: int) -> torch.Tensor:
    largest = float(packed.abs().max()) if kind == FLOAT16 and packed.numel() else 0.0
    if largest > torch.finfo(torch.float16).max:
        raise LoadError(
            f"weights of up to {largest:.0e} are larger than float16 holds (65504), which stands for bfloat16 on this "
            f"processor: package the model with precision: float32"
        )
    return packed.to(_DTYPES[kind])


def _units(values: torch.Tensor, lanes: int) -> torch.Tensor:
    """[S, H] -> [blocks, S, lanes]."""
    return _pad_units(values, lanes).view(len(values), -1, lanes).transpose(0, 1).contiguous()


def _pad_units(values: torch.Tensor, lanes: int) -> torch.Tensor:
    """Pad the units, dimension 1, with zeros to whole blocks."""
    missing = -values.shape[1] % lanes
    return torch.cat([values, values.new_zeros(values.shape[0], missing, *values.shape[2:])], 1)


_HUGE_PAGE = 2 << 20
_LINE = 64
"""Bytes of a cache line."""
_LEAST_BYTES = _HUGE_PAGE // 2
"""Bytes from which on weights get separate huge pages."""


def in_huge_pages(tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Copy contiguous tensors into one region of huge pages, and empty the list.

    Each begins with a cache line. A tensor that nothing else holds is freed once it is copied. Few bytes are not
    copied. A system without huge pages gives small ones.

    Raises `MemoryError`: out of memory.

    >>> weights = torch.rand(512, 512), torch.rand(3), torch.rand(256, 512)
    >>> copies = in_huge_pages([*weights])
    >>> [bool(torch.equal(*pair)) for pair in zip(weights, copies)]
    [True, True, True]
    >>> copies[0].data_ptr() % (2 << 20), copies[2].data_ptr() - copies[1].data_ptr()
    (0, 64)
    """
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    places = [0, *accumulate(-(-size // _LINE) * _LINE for size in sizes)]
    region = _region(places[-1]) if places[-1] >= _LEAST_BYTES else None
    copies = []
    for place, size in zip(places, sizes):
        tensor = tensors.pop(0).detach()
        if region is not None:
            tensor = region[place : place + size].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        copies.append(tensor)
    return tuple(copies)


def _region(size: int) -> torch.Tensor:
    """Bytes that begin with a huge page. Private memory: shared memory has huge pages on few systems.

    Pages that are less than half full stay small, or many small layers would take twice their memory.
    """
    try:
        memory = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"out of memory for {size / 2**20:.0f} MiB of weights: {error}") from error
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % _HUGE_PAGE
    if (advice := getattr(mmap, "MADV_HUGEPAGE", None)) is not None:
        with suppress(OSError):  # a kernel without them refuses
            memory.madvise(advice, start, (size + _HUGE_PAGE // 2) // _HUGE_PAGE * _HUGE_PAGE)
    return whole[start : start + size]


_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
"""The system call on x86-64, its request, and the registers that are asked for."""


@cache
def may_use_tiles() -> bool:
    """Ask for tiles for this process, and for those that it forks; whether the system grants them.

    A kernel before 5.16 refuses, as do some sandboxes. Any kernel refuses while a thread's stack for signals is too
    small.
    """
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)

"""Mutation of .npy files: another dtype, order, version, shape or length of the data."""

from __future__ import annotations

from math import prod
from random import Random

_MAGIC = b"\x93NUMPY"
_WIDTHS = {"b1": 1, "i1": 1, "u1": 1, "i2": 2, "u2": 2, "f2": 2, "i4": 4, "u4": 4, "f4": 4, "i8": 8, "u8": 8, "f8": 8}
_FOREIGN = ("'|O'", "'<U4'", "'c8'", "[('a', '<i4')]", "None", "3", "'<f16'", "''", "'<'")
_AWKWARD_SIZES = (0, 1, 2, 3, 4, 8, 9, 65, 1 << 20, (1 << 39), (1 << 40) - 1, 1 << 40, 1 << 63, 1 << 64, -1)
_TEXTS = (
    "",
    "{}",
    "[" * 300,
    "(" * 4000,
    "{'descr': '<i8'}",
    "{[]: 1}",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (" + "9" * 4000 + ",), }",
    "{'descr': '<i8', 'fortran_order': 1, 'shape': [2], }",
    "\x00",
    "'\\d'",
    "-" * 3000 + "1",
)
_MOST_DATA = 4096
"""Bytes of data that are made for a shape."""
_ORDERS = (*(False, True) * 8, None)
"""Values of `fortran_order`; None is refused."""


def npy_file(header: str, data: bytes, version: int = 1, header_length: int | None = None) -> bytes:
    """Return a file of any header, which may be wrong, as may the length that it is said to have."""
    text = header.encode("latin-1" if version < 3 else "utf-8", "replace")
    length = len(text) if header_length is None else header_length
    width = 2 if version == 1 else 4
    return _MAGIC + bytes((version & 255, 0)) + (length % (1 << 8 * width)).to_bytes(width, "little") + text + data


def mutate_npy(random: Random) -> bytes:
    """Return a file of a random header; its data has the header's size, or nearly."""
    version = random.choice((1, 1, 1, 2, 3, 0, 4, 255))
    if random.random() < 0.1:
        return npy_file(random.choice(_TEXTS), b"", version)
    kind = random.choice(list(_WIDTHS))
    shape = _shape(random)
    descr = random.choice(_FOREIGN) if random.random() < 0.1 else f"'{random.choice('<<<>|=!')}{kind}'"
    text = f"{{'descr': {descr}, 'fortran_order': {random.choice(_ORDERS)}, 'shape': {shape!r}, }}"
    length = (
        None if random.random() < 0.9 else random.choice((0, 1, len(text) - 1, len(text) + 1, 4096, 65535, 1 << 31))
    )
    return npy_file(text, _data(shape, _WIDTHS[kind], random), version, length)


def _shape(random: Random) -> tuple[object, ...]:
    if random.random() < 0.5:  # as the models take it
        return (random.randint(1, 9), *random.choice(((), (), (2,), (2, 2))))
    pool = random.choice((_AWKWARD_SIZES, _AWKWARD_SIZES, (0, 1 << 39)))
    sizes = [random.choice(pool) for _ in range(random.choice((0, 1, 2, 3, 4, 32, 33)))]
    return (*sizes, *random.choice(((), (), (True,), (2.0,), ("2",))))


def _data(shape: tuple[object, ...], width: int, random: Random) -> bytes:
    count = prod(size if type(size) is int else 1 for size in shape)
    needed = count * width if 0 <= count * width <= _MOST_DATA else 0
    found = max(0, needed + random.choice((0, 0, 0, 0, -1, 1, width)))
    if random.random() < 0.5:  # small integers, as ids are
        return (random.randint(0, 99).to_bytes(width, "little") * (1 + found // width))[:found]
    return random.randbytes(found)

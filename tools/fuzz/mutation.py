"""Mutation of JSON text, .npy files and bytes. JSON may become text that is none, or that readers treat differently."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

_WORDS = """
    ids frames inputs instances grid mask half kind levels bands name shape datatype data parameters timeout id session
    start end step token sequence_id sequence_start sequence_end sequence_step model_name binary_data_size outputs
    binary_data binary_data_output classification open true 1 INT64 INT8 FP32 FP16 BF16 BOOL UINT8 UINT64 BYTES
    format backend requires host takes_lengths overflow carried shapes longest variants costs padding_costs
    weights streaming files dtype pad_value vocabulary batch time part bucket directory fill sequence chunk head any
    truncate float32 int64 bool cores store disk redis client state url fields accepted limits
    produced_by redis://a rediss://[::1]:0/1 redis://a:b/c redis://a/1?x time//0 time**9 Max(time,2) ../x /x a//b inf
"""
WORDS = (*_WORDS.split(), "(" * 300 + "time" + ")" * 300, "-" * 900 + "time", "time+" * 900 + "1", "a\x00b")
"""Strings that mean something where the text is read: keys, names and choices."""
_VALUES = r"""
    0 -1 1 2 3 1.5 -0.0 1e2 1e400 -1e400 1e-400 NaN Infinity -Infinity 65536 1099511627776 9007199254740993 3.5e38 1e308
    9223372036854775807 9223372036854775808 18446744073709551616 true false null [] {} [[]] "" "a" "time" "batch" "inf"
    "1" 01 +1 "\ud800" "\ud83d\ude00" "\u0000" [549755813888,549755813888] [1,2,3] [[1,2],[3]]
"""
_AWKWARD = (*_VALUES.split(), "1" * 5000, "0." + "3" * 400, f'"{"x" * 600}"', '"' + r"\u0001" * 512 + '"')
"""JSON values at the bounds of what is accepted, and texts that are none."""
_DEEPEST = 60
_WIDTHS = {"b1": 1, "i1": 1, "u1": 1, "i2": 2, "u2": 2, "f2": 2, "i4": 4, "u4": 4, "f4": 4, "i8": 8, "u8": 8, "f8": 8}


class RawText(str):
    """Text that is written as it is, in the place of a JSON value."""

    __slots__ = ()


def json_text(value: Any) -> str:
    """Write a value, with its raw texts as they are."""
    if isinstance(value, RawText):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{json_text(part)}" for key, part in value.items()) + "}"
    return "[" + ",".join(map(json_text, value)) + "]" if isinstance(value, list) else json.dumps(value)


def mutate_json(content: bytes, words: Sequence[str], random: Random) -> bytes | None:
    """Return JSON text with up to three parts changed; None if `content` is not JSON, or too deep."""
    try:
        root: list[Any] = [json.loads(content)]
    except (ValueError, RecursionError):
        return None
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places: list[tuple[Any, Any]] = []
        level: list[Any] = [root]
        for _ in range(_DEEPEST):
            here = [
                (whole, key) for whole in level for key in (range(len(whole)) if isinstance(whole, list) else whole)
            ]
            places += here
            level = [whole[key] for whole, key in here if isinstance(whole[key], (list, dict))]
        if level:
            return None
        if places:
            _change(*random.choice(places), words, random)
    return ",".join(map(json_text, root)).encode("utf-8", "surrogatepass")


def _change(whole: Any, key: Any, words: Sequence[str], random: Random) -> None:
    """Replace, remove, repeat, rename or nest one part."""
    value, is_list = whole[key], isinstance(whole, list)
    awkward = RawText(random.choice(_AWKWARD))
    match random.randrange(9):
        case 0 | 1:
            whole[key] = awkward if random.random() < 0.6 else random.choice(words)
        case 2 if type(value) in (int, float) and abs(value) < 1e18:
            whole[key] = random.choice((value + 1, value - 1, -value, value * 2, value + 0.5, float(value)))
        case 3:  # by its text: a value that held itself could not be written
            whole[key] = RawText(json_text(random.choice(whole if is_list else list(whole.values()))))
        case 4:
            del whole[key]
        case 5 if is_list:
            whole.insert(key, awkward)
        case 5:
            whole[random.choice(words)] = awkward
        case 6 if is_list:
            whole[key:key] = [RawText(json_text(value))] * random.choice((1, 2, 8, 70))
        case 6:  # a key that is given twice
            whole[key] = RawText(f"{json_text(value)},{json.dumps(key)}:{json_text(value)}")
        case 7 if not is_list:
            whole[random.choice((random.choice(words), key.upper(), key.replace("_", "-"), ""))] = whole.pop(key)
        case _:  # near the interpreter's limit of recursion one reader fails, and another one does not
            depth = random.choice((1, 2, 5, 50, 300, 600, 5000, *[random.randint(950, 1000)] * 4))
            inner = random.choice((json_text(value), ""))
            lists, objects = "[" * depth + inner + "]" * depth, '{"a":' * depth + (inner or "1") + "}" * depth
            whole[key] = RawText(lists if random.random() < 0.8 else objects)


def mutate_npy(random: Random) -> bytes:
    """Return a file of a random header; its data has the header's size, or nearly."""
    kind, width = random.choice(list(_WIDTHS.items()))
    shape: tuple[object, ...] = (random.randint(1, 9), *random.choice(((), (), (2,), (2, 2))))  # as the models take it
    if random.random() < 0.5:
        sizes = random.choice(
            ((0, 1, 2, 3, 9, 65, 1 << 20, 1 << 39, (1 << 40) - 1, 1 << 63, 1 << 64, -1), (0, 1 << 39))
        )
        shape = tuple(random.choice(sizes) for _ in range(random.choice((0, 1, 2, 3, 4, 32, 33))))
        shape += random.choice(((), (), (True,), (2.0,), ("2",)))
    foreign = ("'|O'", "'<U4'", "'c8'", "[('a', '<i4')]", "None", "3", "'<f16'", "''")
    descr = random.choice(foreign) if random.random() < 0.1 else f"'{random.choice('<<<>|=!')}{kind}'"
    order = random.choice((*(False, True) * 8, None))
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape!r}, }}"
    if random.random() < 0.1:
        text = random.choice(("", "{}", "[" * 300, "(" * 4000, "{[]: 1}", "\x00", "'\\d'", "-" * 3000 + "1", text[:-9]))
    count = 1
    for size in shape:
        count *= size if type(size) is int else 1
    needed = count * width if 0 <= count * width <= 4096 else 0
    data = random.randbytes(max(0, needed + random.choice((0, 0, 0, 0, -1, 1, width))))
    version = random.choice((1, 1, 1, 2, 3, 0, 4, 255))
    header = text.encode("latin-1")
    length = len(header) if random.random() < 0.9 else random.choice((0, 1, len(header) + 1, 4096, 65535))
    return b"\x93NUMPY" + bytes((version, 0)) + length.to_bytes(2 if version == 1 else 4, "little") + header + data


def mutate_octets(content: bytes, random: Random) -> bytes:
    """Return bytes with one change at a random place: flipped, inserted, removed, repeated or cut off."""
    place = random.randint(0, len(content))
    end = min(len(content), place + random.choice((1, 1, 2, 4, 8, 64)))
    before, part, rest = content[:place], content[place:end], content[end:]
    flipped = bytes(byte ^ 1 << random.randrange(8) for byte in part)
    inserted = random.randbytes(random.randint(1, 8)) + part
    changed = random.choice((flipped, inserted, b"", part * random.randint(2, 4), None))
    return before if changed is None else before + changed + rest

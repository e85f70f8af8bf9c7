"""String constants of a Java class file."""

from __future__ import annotations

import struct

_UTF8, _STRING = 1, 8
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
"""Bytes of a constant after its tag; that of a text is told by the text."""
_OF_TWO_INDICES = (5, 6)
_HEADER = 8


def string_constants(content: bytes) -> set[str]:
    """Return the strings that the code of a class has; names of its methods and variables are none.

    The format is that of the JVM specification, 4.4.
    """
    (count,) = struct.unpack_from(">H", content, _HEADER)
    texts: dict[int, bytes] = {}
    strings: list[int] = []
    index, start = 1, _HEADER + 2
    while index < count:
        tag = content[start]
        start += 1
        size = _SIZES.get(tag, 0)
        if tag == _UTF8:
            size = 2 + int.from_bytes(content[start : start + 2], "big")
            texts[index] = content[start + 2 : start + size]
        elif tag == _STRING:
            strings.append(int.from_bytes(content[start : start + 2], "big"))
        start += size
        index += 2 if tag in _OF_TWO_INDICES else 1
    return {texts[one].decode("utf-8", "replace") for one in strings}

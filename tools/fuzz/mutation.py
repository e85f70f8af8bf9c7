"""Changes of text by its tokens: JSON, headers of .npy files and lines of a request, which mostly stay well-formed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

_NAMES = """
    ids frames inputs instances grid mask half kind levels bands name shape datatype data parameters timeout id session
    start end step token sequence_id sequence_start sequence_end sequence_step model_name binary_data_size outputs
    binary_data binary_data_output classification open true 1 INT64 INT8 FP32 FP16 BF16 BOOL UINT8 UINT64 BYTES
    format backend requires host takes_lengths overflow carried shapes longest variants costs padding_costs
    weights streaming files dtype pad_value vocabulary batch time part bucket directory fill sequence chunk head any
    truncate float32 int64 bool cores store disk redis client state url fields accepted limits
    produced_by redis://a rediss://[::1]:0/1 redis://a:b/c redis://a/1?x time//0 time**9 Max(time,2) ../x /x a//b inf
"""
_VALUES = r"""
    0 -1 1 2 3 1.5 -0.0 1e2 1e400 -1e400 1e-400 NaN Infinity -Infinity 65536 1099511627776 9007199254740993 3.5e38 1e308
    9223372036854775807 9223372036854775808 18446744073709551616 true false null [] {} [[]] "" "a" 01 +1 "\ud800"
    "\ud83d\ude00" "\u0000" [549755813888,549755813888] [1,2,3] [[1,2],[3]] '|b1' '<i1' '<u2' '<f2' '>i4' '<f4' '>f8'
    '|O' '<U4' 'c8' '<f16' None True False (2,) (3,2) (2,2,2) (0,) 549755813888 {[]:1} 2.0
"""
WORDS = (
    *(f'"{name}"' for name in _NAMES.split()),
    *_VALUES.split(),
    *("1" * 5000, "0." + "3" * 400, f'"{"x" * 600}"', '"' + r"\u0001" * 512 + '"', "(" * 4000, "-" * 3000 + "1"),
    *('"' + "(" * 300 + "time" + ")" * 300 + '"', '"' + "time+" * 900 + '1"'),
)
"""Names, choices, and values at the bounds of what is accepted, for bodies and manifests."""
_MOST_BYTES = 16_384
_TOKEN = re.compile(rb""""(?:\\.|[^"\\])*"|'[^']*'|[\w.+-]+|.""", re.DOTALL)


def mutate(content: bytes, words: Sequence[str], random: Random) -> bytes:
    """Change up to three parts, each a word, a number or all between brackets: by another one, repeated or nested."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        tokens = _TOKEN.findall(content)
        starts = [place for place, token in enumerate(tokens) if token not in b" ,:\n]})"] or [0]
        (start, end), (first, last) = ((place, _end(tokens, place)) for place in random.choices(starts, k=2))
        part, word = tokens[start:end], random.choice(words).encode()
        # near the interpreter's limit of recursion one reader fails, and another one does not
        depth = random.choice((1, 2, 5, 50, 300, random.randint(950, 1000)))
        repeated = [*part, b","] * random.choice((1, 2, 8, 70)) + part
        nested = [b"[" * depth, *part, b"]" * depth]
        others: tuple[list[bytes], ...] = repeated, nested, tokens[first:last], [*part, b",", word]
        if random.random() < 0.1:
            del tokens[start : end + (tokens[end : end + 1] == [b","])]
        else:
            tokens[start:end] = [word] if random.random() < 0.5 else random.choice(others)
        content = b"".join(tokens)[:_MOST_BYTES]
    return content


def _end(tokens: Sequence[bytes], start: int) -> int:
    """Return the place behind a part: a bracket ends where it is closed."""
    depth = 0
    for place, token in enumerate(tokens[start:], start + 1):
        depth += (token in b"[{(") - (token in b"]})")
        if depth <= 0:
            return place
    return len(tokens)

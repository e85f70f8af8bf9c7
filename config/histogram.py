"""Reader of sequence lengths: lists of lengths, and TorchServe logs with the handler's lines.

A list has lengths (timesteps) separated by blanks, commas or lines; `12:3` stands for three sequences of 12, and #
begins a comment. In a log, only the handler's lines count: `neuron_lstm lengths 12:3 50:1`, wherever in a line that is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

from .diagnostics import truncate

LOG_PREFIX = "neuron_lstm lengths "
"""Beginning of the line that the handler logs for each batch."""

_MOST_COMPLAINTS = 3
_LONGEST_NOTE = 40  # characters
_ENTRY = re.compile(r"([0-9]{1,9})(?::([0-9]{1,15}))?")
_WORKER = re.compile(r"\bW-[0-9]{1,9}-(\S{1,255})_[^_\s]{1,255}-std(?:out|err)\b")
_PAIRS = re.compile(rf"{LOG_PREFIX}((?:[0-9]{{1,9}}:[0-9]{{1,15}}(?:\s+|$))+)")


class LengthsError(ValueError):
    """A text without lengths, or with something else; the message names the line."""


@dataclass(frozen=True)
class LengthHistogram:
    """Numbers of sequences by length, for each model that a log names."""

    by_model: Mapping[str | None, Mapping[int, int]]
    """Number of sequences of each length, by model. None: those of lists, and of log lines without a worker's name."""

    def histogram(self, model: str | None = None) -> dict[int, int]:
        """Return the sequences of one model, and those without a model's name.

        Raises `LengthsError`: no model is given and there are several, or there are no lengths of `model`.
        """
        names = sorted(name for name in self.by_model if name is not None)
        if model is None and len(names) > 1:
            raise LengthsError(f"has lengths of {len(names)} models: {', '.join(names)}")
        if model is not None and model not in names:
            raise LengthsError(f"has no lengths of the model {model}, but of {', '.join(names) or 'no model'}")
        return _sum(self.by_model.get(name, {}) for name in {None, *([model] if model else names)})

    def __add__(self, other: LengthHistogram) -> LengthHistogram:
        names = {*self.by_model, *other.by_model}
        parts = (self.by_model, other.by_model)
        return LengthHistogram({name: _sum(part.get(name, {}) for part in parts) for name in names})


def _sum(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    return dict(sorted(sum(map(Counter, histograms), Counter[int]()).items()))


def read_lengths(path: Path) -> dict[int, int]:
    """Read the number of sequences of each length from a file, a list or a log of one model, ascending.

    Raises `LengthsError`: it cannot be read, or it has no lengths, or something else.
    """
    try:
        regular = S_ISREG(path.stat().st_mode)
        data = path.read_bytes() if regular else b""
    except (OSError, ValueError) as error:  # a ValueError: the path holds what no path can
        reason = error.strerror if isinstance(error, OSError) else None
        raise LengthsError(f"cannot be read: {reason or error}") from error
    if not regular:
        raise LengthsError("cannot be read: it is not a regular file")
    observed = parse_lengths(data)
    try:
        return observed.histogram()
    except LengthsError as error:
        advice = f"`neuron-lstm tune {path} --model NAME --save-lengths FILE` writes those of one"
        raise LengthsError(f"{error}: {advice}") from error


def parse_lengths(data: bytes) -> LengthHistogram:
    """Parse a list or a log.

    >>> parse_lengths(b"12 7, 12 # a comment").by_model
    {None: {7: 1, 12: 2}}
    >>> parse_lengths(b"... W-9000-tagger_1.0-stdout MODEL_LOG - neuron_lstm lengths 12:3 50:1").by_model
    {'tagger': {12: 3, 50: 1}}

    Raises `LengthsError`: it has no lengths, or a list has something else. Other lines of a log are ignored.
    """
    text = data.decode("utf-8-sig", errors="replace")
    observed = LengthHistogram(_of_log(text) if LOG_PREFIX in text else {None: _of_list(text)})
    if not any(observed.by_model.values()):
        raise LengthsError("holds no lengths")
    return observed


def _of_list(text: str) -> dict[int, int]:
    entries = Counter(entry for line in text.splitlines() for entry in _entries(line))
    if any(_read(entry) is None for entry in entries):
        raise LengthsError(_complaint(text))
    total: Counter[int] = Counter()
    for entry, times in entries.items():
        length, number = _read(entry) or (0, 0)
        total[length] += times * number
    return {length: number for length, number in sorted(total.items()) if number}


def _entries(line: str) -> list[str]:
    return line.partition("#")[0].replace(",", " ").split()


def _read(entry: str) -> tuple[int, int] | None:
    """(length, number of sequences), or None for what is neither `12` nor `12:3`."""
    found = _ENTRY.fullmatch(entry)
    if found is None or int(found[1]) < 1:
        return None
    return int(found[1]), int(found[2] or 1)


def _complaint(text: str) -> str:
    wrong = [
        (line, entry)
        for line, written in enumerate(text.splitlines(), 1)
        for entry in _entries(written)
        if _read(entry) is None
    ]
    shown = wrong[:_MOST_COMPLAINTS]
    named = ", ".join(f"{truncate(repr(entry), _LONGEST_NOTE)} in line {line}" for line, entry in shown)
    more = f" and {len(wrong) - _MOST_COMPLAINTS} more" if len(wrong) > _MOST_COMPLAINTS else ""
    return (
        f"expected whole numbers of timesteps from 1 on, as in 12 or 12:3 for three sequences of 12, got {named}{more} "
        f"(nor is it a log: no line has `{LOG_PREFIX.strip()}`; with LOG_LOCATION=logs, `neuron-lstm serve` writes "
        "such lines to logs/model_log.log)"
    )


def _of_log(text: str) -> dict[str | None, dict[int, int]]:
    found: dict[str | None, Counter[int]] = {}
    for line in text.splitlines():
        pairs = _PAIRS.search(line) if LOG_PREFIX in line else None
        if pairs is not None:
            worker = _WORKER.search(line, 0, pairs.start())
            counts = found.setdefault(worker[1] if worker else None, Counter())
            entries = (entry.split(":") for entry in pairs[1].split())
            counts.update({int(length): int(number) for length, number in entries if int(length) >= 1})
    return {name: dict(sorted(counts.items())) for name, counts in found.items()}

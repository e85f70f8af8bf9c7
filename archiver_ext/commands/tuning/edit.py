"""Editor of the lengths in the text of a model-config.yaml; comments and layout stay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....config.diagnostics import ConfigError, Diagnostic
from ....config.load import parse_config
from ....config.schema import BLOCK, ServingConfig
from ....config.yaml_text import SourceSpan, find_span

_LENGTH = (BLOCK, "buckets", "length")
_CHANGING: dict[str, Any] = {"buckets": {"length"}, "histogram": True}


def replace_lengths(text: str, source: str, lengths: Sequence[int], folder: Path = Path()) -> str:
    r"""Replace the bucket lengths in the text of a configuration; `source` names the file in messages.

    >>> text = "neuron_lstm: {inputs: {x: {dtype: bool, shape: [time]}}, buckets: {length: [8]}}  # mine\n"
    >>> print(replace_lengths(text, "model-config.yaml", (4, 16)), end="")
    neuron_lstm: {inputs: {x: {dtype: bool, shape: [time]}}, buckets: {length: [4, 16]}}  # mine

    Raises `ConfigError`: something in the text cannot be used, it has no lengths, or they cannot be changed without
    changing something else.
    """
    before = parse_config(text, source, folder)
    place = find_span(text, _LENGTH)
    if place is None:
        raise _refusal(source, "is missing: no input has a time dimension")
    changed = _replaced(text, place, f"[{', '.join(map(str, lengths))}]")
    try:
        after = parse_config(changed, source, folder)
    except ConfigError as error:
        raise _refusal(source, _by_hand(lengths)) from error
    if after.grid.lengths != tuple(lengths) or _rest(after) != _rest(before):
        raise _refusal(source, _by_hand(lengths))
    return changed


def _by_hand(lengths: Sequence[int]) -> str:
    return f"cannot be changed by itself (is it an alias, or the anchor of one?): write {list(lengths)} there"


def _refusal(source: str, message: str) -> ConfigError:
    return ConfigError(source, [Diagnostic(".".join(_LENGTH), 1, message)])


def _rest(config: ServingConfig) -> dict[str, Any]:
    return config.model_dump(exclude=_CHANGING)


def _replaced(text: str, place: SourceSpan, value: str) -> str:
    # A value that begins below its key moves up beside it; comments in between and after it stay.
    first, *between = text[place.key_end : place.start].split("\n")
    if not between:
        return text[: place.start] + value + text[place.end :]
    colon = first.index(":") + 1
    rest, newline, following = text[place.end :].partition("\n")
    comment = [between[-1] + rest.strip()] if rest.strip() else []
    lines = [text[: place.key_end] + first[:colon] + " " + value + first[colon:], *between[:-1], *comment]
    return "\n".join(lines) + newline + following

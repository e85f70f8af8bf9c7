"""Mutations change what they are given, mostly keep its form, and make both good and bad inputs."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from fuzz.mutation.json_text import mutate_json
from fuzz.mutation.npy import mutate_npy
from fuzz.mutation.octets import mutate_octets
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.handlers.formats.npy import read_npy
from torchserve_neuron_lstm.handlers.responses import RequestError

BODY = b'{"ids": [1, 2, [3, {"a": null}]], "x": true}'
SEEDS = range(300)


def parsed(content: bytes) -> Any:
    """The JSON value, or None."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def refusal(content: bytes) -> str | None:
    """The beginning of the reason for which a .npy file is refused, or None."""
    try:
        read_npy(content)
    except RequestError as error:
        return error.message[:24]
    return None


@given(st.binary(max_size=30), st.integers(0, 2**32))
def test_any_bytes_are_mutated(content: bytes, seed: int) -> None:
    """Empty content too; the result is at most a few times as long."""
    assert len(mutate_octets(content, Random(seed))) <= 4 * len(content) + 8


def test_json_is_mostly_mutated_into_other_json() -> None:
    """Some mutations are no JSON: those are wanted too."""
    made = [mutate_json(BODY, ("ids", "y"), Random(seed)) for seed in SEEDS]
    values = [parsed(content) for content in made if content is not None]
    changed = [value for value in values if value is not None and value != json.loads(BODY)]

    assert len(values) == len(SEEDS)
    assert len(SEEDS) / 2 < len(changed) < len(SEEDS)


@pytest.mark.parametrize("content", [b"", b"[1", b"\xff", b"[" * 100 + b"]" * 100, b"1" * 5000])
def test_what_is_no_json_or_too_deep_is_left_to_others(content: bytes) -> None:
    """A value that cannot be walked through is mutated as bytes."""
    assert mutate_json(content, ("x",), Random(0)) is None


def test_npy_files_are_read_or_refused() -> None:
    """Both happen often, and the refusals have many reasons."""
    read, reasons = 0, set[str | None]()
    for seed in SEEDS:
        reason = refusal(mutate_npy(Random(seed)))
        read += reason is None
        reasons |= {reason}

    assert read > len(SEEDS) / 10
    assert len(reasons) > 5

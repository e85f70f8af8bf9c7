"""TorchServe's own image has Python 3.9: the files of an archive use nothing newer."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args

import pytest

from torchserve_neuron_lstm.archiver_ext.archive.carried_files import STORES, carried_files
from torchserve_neuron_lstm.backends.aws_neuron import device
from torchserve_neuron_lstm.backends.partitioning.partitioned_program import SegmentList
from torchserve_neuron_lstm.backends.registry import ENGINES
from torchserve_neuron_lstm.backends.signature import Signature
from torchserve_neuron_lstm.backends.vollo import engine
from torchserve_neuron_lstm.config import json_codec
from torchserve_neuron_lstm.config.manifest import Manifest

PACKAGE = Path(__file__).parents[1] / "src" / "torchserve_neuron_lstm"
OLDEST = "3.9"


def serving_files() -> list[Path]:
    carried = {
        file
        for name in ENGINES
        for store in (None, *STORES)
        for file in carried_files(name, cpu_segments=True, store=store)
    }
    return [PACKAGE / file for file in sorted(carried)]


def problems(files: list[Path]) -> str:
    command = [sys.executable, "-c", "from vermin import main; main()", f"-t={OLDEST}-", "--no-tips", "-vvv"]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, check=False)
    assert "Minimum required versions" in done.stdout, done.stderr
    found = [line for line in done.stdout.splitlines() if "require" in line and "3.1" in line]
    return "" if done.returncode == 0 else "\n".join(found)


def test_no_file_of_an_archive_needs_a_newer_python() -> None:
    assert problems(serving_files()) == ""


@pytest.mark.parametrize(
    "code",
    [
        "from itertools import pairwise",
        "zip([], [], strict=True)",
        "match 1:\n    case _: pass",
        "from types import NoneType",
    ],
)
def test_what_python_3_9_lacks_is_found(code: str, tmp_path: Path) -> None:
    """Whatever is named above was in the files once."""
    file = tmp_path / "file.py"
    file.write_text(f"{code}\n", "utf-8")

    assert problems([file])


CODED = (Manifest, Signature, SegmentList, device._Facts, engine._Facts)
"""Classes of JSON files. The codec evaluates the annotations of their fields."""


def types_within(kind: Any, seen: set[Any]) -> Iterator[Any]:
    if isinstance(kind, type) and kind in seen:
        return
    yield kind
    if isinstance(kind, type) and json_codec._form(kind) is object:
        seen.add(kind)
        for own in json_codec._fields_of(kind).values():
            yield from types_within(own, seen)
    for part in get_args(kind):
        if not isinstance(part, str | tuple) and not callable(getattr(part, "__code__", None)):
            yield from types_within(part, seen)


def unions(kind: Any) -> list[Any]:
    return [part for part in types_within(kind, set()) if isinstance(part, UnionType)]


@pytest.mark.parametrize("kind", CODED, ids=lambda kind: kind.__name__)
def test_no_field_of_a_json_file_has_a_union_that_python_3_9_cannot_evaluate(kind: type) -> None:
    """Python 3.9 has `Optional[int]` and not `int | None`."""
    assert unions(kind) == []


class _Newer(NamedTuple):
    number: int | None


def test_a_union_within_a_field_is_found() -> None:
    assert unions(dict[str, tuple[_Newer, ...]]) == [int | None]

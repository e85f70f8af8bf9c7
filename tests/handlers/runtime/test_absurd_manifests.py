"""Archives whose digests are right but whose content makes no sense end in one message, or serve."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_archive import make_archive

from torchserve_neuron_lstm.config.json_codec import MOST_BYTES
from torchserve_neuron_lstm.config.manifest import FILE_NAME, ManifestError
from torchserve_neuron_lstm.handlers.formats import make_codec
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.formats.request import ModelIdentity
from torchserve_neuron_lstm.handlers.runtime.loader import LoadedArchive, load_archive
from torchserve_neuron_lstm.handlers.runtime.requirements import check_memory, total_memory
from torchserve_neuron_lstm.inference.open_archive import make_service

REMOVED = object()
AWKWARD: tuple[Any, ...] = (
    *(None, True, "", "x\ny", "x" * 5000, "../../etc/passwd", "time", "inf", 0, -1, 1, 3, 7, 0.5, 1e-300, 1e308),
    *(1 << 31, 1 << 62, 10**30, [], {}, ["batch"], ["batch", "time", 3, 3], [[]], {"batch": 1, "length": 4}, REMOVED),
)
"""Values of every type. The sizes among them are small, or too large for any memory."""
ADVICE = ("package the model again", "pip install", "Available: ", "serve on a host with more memory")
LONGEST_MESSAGE = 1500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of which each example overwrites the manifest."""
    return make_archive(tmp_path_factory.mktemp("absurd"))


@pytest.fixture(scope="module")
def written(folder: Path) -> Any:
    return json.loads((folder / FILE_NAME).read_text())


def paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place of a JSON value except the digests of the serving code."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        if not str(key).startswith("torchserve_neuron_lstm"):
            yield (*path, key)
            yield from paths(one, (*path, key))


def changed(written: Any, path: tuple[str | int, ...], value: Any) -> Any:
    whole = copy.deepcopy(written)
    inner: Any = whole
    for key in path[:-1]:
        inner = inner[key]
    if value is REMOVED:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return whole


def load(folder: Path, content: Any) -> LoadedArchive:
    (folder / FILE_NAME).write_text(json.dumps(content))
    return load_archive(folder, threads=1)


def status(archive: LoadedArchive) -> int:
    service = make_service(archive, make_codec(archive.manifest, ModelIdentity("sums", "")))
    (response,) = service.handle([RawRequest({"body": b"[1, 2, 3]"}, {"Content-Type": "application/json"})])
    json.loads(response.body)
    return response.status


@given(data=st.data())
def test_a_changed_value_ends_in_one_message_or_serves(folder: Path, written: Any, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from([*paths(written)]))
    value = data.draw(st.sampled_from(AWKWARD))
    files = {file for file in folder.rglob("*") if "__pycache__" not in file.parts}
    try:
        loaded = load(folder, changed(written, path, value))
    except RuntimeError as error:
        assert len(str(error)) < LONGEST_MESSAGE  # noqa: PT017 - it may also load
        assert any(advice in str(error) for advice in ADVICE)  # noqa: PT017 - the same
    else:
        assert status(loaded) < 500 or path[-1] == "pad_value"  # the model alone knows which ids it has
    assert {file for file in folder.rglob("*") if "__pycache__" not in file.parts} == files


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("inputs",), [], "inputs: expected one or more, got none"),
        (("outputs",), [], "outputs: expected one or more, got none"),
        (("inputs", 0, "name"), "", "inputs[0].name: expected a name, got none"),
        (("inputs", 0, "vocabulary"), -1, "inputs[0].vocabulary: expected a positive number, got -1"),
        (("inputs", 0, "shape"), ["batch", 1 << 40], "inputs[0].shape: expected sizes of 2147483647 at most"),
        (("grid", "lengths"), [4, 1 << 40], "grid.lengths: expected sizes of 2147483647 at most, got 1099511627776"),
        (("grid", "lengths"), [*range(1, 40_000)], "grid: expected 65536 buckets at most, got 79998"),
        (("longest",), 10**30, "longest: expected at most 2147483647, got 1000000000000000000000000000000"),
        (("threads",), -1, "threads: expected a positive number, got -1"),
        (("costs", 0, "milliseconds"), 1e308, "costs[0].milliseconds: expected 1e-06 to 1e+09 milliseconds"),
        (("codec",), "x\ny", "codec: expected module:name, got 'x\\ny'"),
        (("requires", 0, "module"), "../x", "requires[0].module: expected the name of a module, got '../x'"),
        (("variants", 0, "directory"), "a" * 300, "variants[0].directory: expected a path that a file can have, got"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(
    folder: Path, written: Any, path: tuple[str | int, ...], value: Any, said: str
) -> None:
    with pytest.raises(ManifestError, match="package the model again") as refused:
        load(folder, changed(written, path, value))

    assert str(refused.value).startswith(f"{FILE_NAME}: {said}")


def test_a_layout_that_the_programs_do_not_have_is_refused(folder: Path, written: Any) -> None:
    expected = r"bucket 4 x 8 as variants\.json declares them .*input 'ids' is float32.*: package the model again"
    with pytest.raises(RuntimeError, match=expected):
        load(folder, changed(written, ("inputs", 0, "dtype"), "float32"))


def test_a_bucket_that_no_memory_holds_is_refused_before_it_is_called(folder: Path, written: Any) -> None:
    """A first call would fill the host's memory and then fail."""
    huge = {"batches": [1 << 20], "lengths": [(1 << 31) - 1]}
    content = changed(written, ("grid",), huge)
    content["shapes"] = "any"
    with pytest.raises(ManifestError, match=r"1048576 x 2147483647, take .* GiB, and this host has .* GiB of memory"):
        load(folder, content)


def test_a_bucket_that_fits_exactly_is_accepted(folder: Path, written: Any) -> None:
    manifest = load(folder, written).manifest

    check_memory(manifest, available=640)
    with pytest.raises(ManifestError):
        check_memory(manifest, available=639)


def test_memory_is_that_of_the_control_group_if_it_is_less(tmp_path: Path) -> None:
    group = tmp_path / "memory.max"
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))

    assert total_memory((group,)) == 1024 * int(total.split()[1])
    group.write_text("1048576\n")
    assert total_memory((group,)) == 1 << 20
    group.write_text("max\n")
    assert total_memory((group,)) == total_memory(())


def test_a_manifest_that_grows_without_end_is_not_parsed(folder: Path) -> None:
    """Parsed lists take many times the memory of their text."""
    (folder / FILE_NAME).write_text("[" + "[]," * (MOST_BYTES // 3) + "[]]")

    with pytest.raises(ManifestError, match=r"variants\.json cannot be read .*larger than 16 MiB.*package the model"):
        load_archive(folder)

import re
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.hosts.torchserve.properties import (
    LAUNCHER_SETTINGS,
    TORCHSERVE_SETTINGS,
    ServeOptions,
    properties,
    properties_text,
    unknown_settings,
)
from torchserve_neuron_lstm.inference.errors import ArchiveError

FILES = {"tagger": "tagger.mar", "other": "b.tar.gz"}
VALUES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])).map(str.strip)
"""Values without spaces at their ends, which Java would remove."""


def made(files: Mapping[str, str] = FILES, body_bytes: int = 1000, **options: Any) -> dict[str, str]:
    return properties(ServeOptions((), **options), files, body_bytes, Path("/home/metrics.yaml"))


def read_by_java(text: str) -> dict[str, str]:
    """The values of a file of properties, by the rules of `java.util.Properties` for what is written here."""
    pairs = (line.partition("=")[::2] for line in text.removesuffix("\n").split("\n"))
    return {name: unescaped(value) for name, value in pairs}


def unescaped(value: str) -> str:
    units = re.sub(r"\\(u([0-9a-f]{4})|.)", lambda found: chr(int(found[2], 16)) if found[2] else found[1], value)
    return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be")


@given(VALUES)
def test_java_reads_the_value_that_was_given(value: str) -> None:
    text = properties_text({"metrics_config": value})

    assert text.isascii()
    assert read_by_java(text) == {"metrics_config": value}


def test_settings_of_the_launcher_are_written_as_they_are() -> None:
    """TorchServe's Python reads them, and knows no escapes."""
    assert properties_text({"vmargs": "-Da=b\\c"}) == "vmargs=-Da=b\\c\n"


def test_the_ports_follow_that_of_inference() -> None:
    """Only the inference port listens on the given host."""
    found = made(host="10.0.0.1", port=9000)

    assert found["inference_address"] == "http://10.0.0.1:9000"
    assert found["management_address"] == "http://127.0.0.1:9001"
    assert found["metrics_address"] == "http://127.0.0.1:9002"
    assert (found["grpc_inference_port"], found["grpc_management_port"]) == ("9003", "9004")
    assert found["grpc_inference_address"] == found["grpc_management_address"] == "127.0.0.1"


@pytest.mark.parametrize(("body_bytes", "limit"), [(1000, "6553500"), (20_000_000, "20000000"), (2**40, "2147483647")])
def test_bodies_are_limited_by_the_largest_of_the_archives(body_bytes: int, limit: str) -> None:
    """TorchServe's own limit is the least. It does not start with one that no int of Java holds."""
    found = made(body_bytes=body_bytes)

    assert (found["max_request_size"], found["max_response_size"]) == (limit, limit)


@pytest.mark.parametrize(
    ("name", "file", "told"),
    [
        *(
            (name, "a.mar", "TorchServe cannot have a model called")
            for name in ("", "a,b", "a=b", "../a", "a b", "a\nx=y", "-a", "ä")
        ),
        ("a", "a,b.mar", r"comma in a,b\.mar"),  # TorchServe would read two files
    ],
)
def test_a_name_that_the_archiver_refuses_is_refused_here_too(name: str, file: str, told: str) -> None:
    """It would name another file, another model or another setting."""
    with pytest.raises(ArchiveError, match=told):
        made({name: file})


def test_torchserve_reads_every_setting_that_is_written_and_no_other() -> None:
    """A name with a typing error would have no effect, and no message."""
    assert unknown_settings([*made()]) == []
    assert unknown_settings(["xyzzy"]) == ["xyzzy"]  # like no other: a wrong suggestion misleads more than none


@pytest.mark.parametrize("name", ["workers", "port", "key", "this", "Code", "address", "version", "TS_CONFIG_FILE"])
def test_a_name_that_torchserve_has_for_something_else_is_found(name: str) -> None:
    """It is no setting."""
    (found,) = unknown_settings([name])

    assert found.startswith(name)


def test_the_installed_torchserve_reads_every_setting_of_the_list() -> None:
    """Its class of settings has each name as a constant."""
    with ZipFile(str(distribution("torchserve").locate_file("ts/frontend/model-server.jar"))) as jar:
        content = jar.read("org/pytorch/serve/util/ConfigManager.class")
    constants = {bytes((len(name) >> 8, len(name) & 255)) + name.encode(): name for name in TORCHSERVE_SETTINGS}

    assert {name for constant, name in constants.items() if constant not in content} == set(LAUNCHER_SETTINGS)

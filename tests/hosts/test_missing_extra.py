"""A server that is not installed is named, with the command that installs it."""

from __future__ import annotations

import importlib
import sys

import pytest


def test_without_ray_the_message_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users start it by `serve run`, or import it."""
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(ImportError, match=r"Ray Serve is missing here .*pip install '[a-z-]+\[ray\]'"):
        importlib.import_module("torchserve_neuron_lstm.hosts.ray")


def test_without_kserve_the_message_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users start it by `python -m`."""
    monkeypatch.setitem(sys.modules, "kserve", None)

    with pytest.raises(ImportError, match=r"KServe is missing here .*pip install '[a-z-]+\[kserve\]'"):
        importlib.import_module("torchserve_neuron_lstm.hosts.kserve")

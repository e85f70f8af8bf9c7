import importlib
import sys

import pytest


@pytest.mark.parametrize(("package", "title"), [("ray", "Ray Serve"), ("kserve", "KServe")])
def test_without_a_host_the_message_has_the_command(package: str, title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users start Ray by `serve run`, or import it, and KServe by `python -m`."""
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ImportError, match=rf"{title} is missing here .*pip install '[a-z-]+\[{package}\]'"):
        importlib.import_module(f"torchserve_neuron_lstm.hosts.{package}")

"""The doubles of AWS's packages for a test: here, in another interpreter alone, or as the placeholder of PyPI."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DOUBLES = Path(__file__).parent / "doubles"
_MODULES = ("torch_neuronx", "torch_neuron")


@contextmanager
def on_path(folder: Path = DOUBLES) -> Iterator[pytest.MonkeyPatch]:
    """The packages of `folder` can be imported here and in processes started from here, and are forgotten after.

    The environment says nothing about cores, and what the test makes of it is undone as well.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
        patch.setenv("NEURON_RT_NUM_CORES", "1")
        patch.delenv("NEURON_RT_NUM_CORES")  # undone is whatever is set from now on
        patch.delenv("NEURON_RT_VISIBLE_CORES", raising=False)
        _forget()
        try:
            yield patch
        finally:
            _forget()


def _forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in _MODULES]:
        del sys.modules[name]


def interpreter(place: Path, folder: Path = DOUBLES) -> Path:
    """A Python beside this one that finds the packages of `folder`, which this one does not."""
    script = place / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return script


def placeholder(place: Path, module: str) -> Path:
    """A folder with what PyPI has under the name: version 1.0, and nothing in it."""
    (place / module).mkdir(parents=True)
    (place / module / "__init__.py").write_text('__version__ = "1.0"\n', encoding="utf-8")
    info = place / f"{module}-1.0.dist-info"
    info.mkdir()
    name = module.replace("_", "-")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    return place

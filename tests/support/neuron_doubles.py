"""Test doubles of AWS's packages: in this interpreter, in another one only, or as PyPI's placeholder."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from python_path import python_path

DOUBLES = Path(__file__).parent / "doubles"
_MODULES = ("torch_neuronx", "torch_neuron")


@contextmanager
def on_path(folder: Path = DOUBLES) -> Iterator[pytest.MonkeyPatch]:
    """Make the packages of `folder` importable here and in child processes, and unload them at the end.

    The environment does not configure cores. Changes of the environment by a test are undone too.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", python_path(folder))
        patch.setenv("NEURON_RT_NUM_CORES", "1")
        patch.delenv("NEURON_RT_NUM_CORES")  # so that a value set from now on is undone
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
    """Create another Python interpreter that finds the packages of `folder`, which this one does not."""
    script = place / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return script


def placeholder(place: Path, module: str) -> Path:
    """Create PyPI's package of the name: version 1.0 without content."""
    (place / module).mkdir(parents=True)
    (place / module / "__init__.py").write_text('__version__ = "1.0"\n', encoding="utf-8")
    info = place / f"{module}-1.0.dist-info"
    info.mkdir()
    name = module.replace("_", "-")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    return place

"""An environment with TorchServe, torch and the engines, but without this project: a serving host.

A program in it is started without this process's PYTHONPATH, by which the project may come.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Collection
from pathlib import Path

import python_path

OURS = ("torchserve_neuron_lstm", "_torchserve_neuron_lstm", "_editable_impl_torchserve_neuron_lstm", "__editable__")


def make_bare_host(folder: Path, without: Collection[str] = ()) -> Path:
    """Make the environment in `folder`; returns its interpreter.

    Its packages are links to those of this environment, except ours and those whose names begin with one of `without`.
    """
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith((*OURS, *without)) and entry.name != "__pycache__":
            (packages / entry.name).symlink_to(entry)
    assert not can_import(python, "torchserve_neuron_lstm")
    assert can_import(python, "ts")
    return python


def can_import(python: Path, module: str) -> bool:
    """Whether a program of that environment finds the module, from an unrelated folder."""
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return (
        subprocess.run(
            [str(python), "-P" if sys.version_info >= (3, 11) else "-s", "-c", look],
            cwd="/",
            env={**os.environ, **python_path.NONE},
            check=False,
        ).returncode
        == 0
    )

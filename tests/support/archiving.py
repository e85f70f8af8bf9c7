"""Packaging as a user does it: files in a folder, and `torch-model-archiver` in a process of its own."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
import warm_archiver
from torch import nn

ARCHIVER = Path(sys.executable).with_name("torch-model-archiver")
FRONTEND = "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 32\nmaxBatchDelay: 2\n"


@dataclass(frozen=True)
class Source:
    """The files of a user before packaging."""

    folder: Path
    """The folder with model.py, weights.pt and model-config.yaml."""
    model: nn.Module
    """The eager model with those weights, in eval mode."""


def write_source(folder: Path, model_file: Path, block: str) -> Source:
    """Write a user's folder: the model's file, seeded weights, a config with `block` under `neuron_lstm:`."""
    folder.mkdir()
    shutil.copy(model_file, folder / "model.py")
    torch.manual_seed(0)
    model = model_class(folder / "model.py")().eval()
    torch.save(model.state_dict(), folder / "weights.pt")
    indented = "".join(f"  {line}\n" for line in block.strip().splitlines())
    (folder / "model-config.yaml").write_text(f"{FRONTEND}neuron_lstm:\n{indented}")
    return Source(folder, model)


def imported(name: str, file: Path) -> ModuleType:
    """Run a file as a new module of this name."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def model_class(file: Path) -> type[nn.Module]:
    """The one module class that a file defines."""
    module = imported(f"_{file.parent.name}_model", file)
    (found,) = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == module.__name__
    ]
    return found


def archive(source: Source, name: str, store: Path, more: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run `torch-model-archiver --handler neuron_lstm` in the user's folder; its output is one text."""
    words = "--version 1.0 --model-file model.py --serialized-file weights.pt --handler neuron_lstm"
    command = [str(ARCHIVER), "--model-name", name, *words.split(), "--config-file", "model-config.yaml"]
    done = warm_archiver.run([*command, "--export-path", str(store), *more], source.folder, os.environ)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout + done.stderr)


def archived(source: Source, name: str, store: Path, more: Sequence[str] = ()) -> None:
    """Run the command, which must succeed."""
    done = archive(source, name, store, more)
    assert done.returncode == 0, done.stdout

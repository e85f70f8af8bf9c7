"""Archives of the benchmarks, made by the real command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


class CannotArchive(RuntimeError):
    """`neuron-lstm archive` failed, or packaged other code; the message says which."""


def run_archiver(folder: Path, name: str, what: str, environment: Mapping[str, str] | None = None) -> Path:
    """Run `neuron-lstm archive` in a folder with a model, its weights and its YAML, as a user does.

    Returns the folder of the archive's files.

    Raises:
        CannotArchive: the command failed; the message names `what` and holds the command's output.
    """
    flags = f"--model-name {name} --version 1.0 --model-file model.py --serialized-file weights.pt"
    rest = "--config-file model-config.yaml --archive-format no-archive --export-path ."
    done = subprocess.run(
        [str(Path(sys.executable).with_name("neuron-lstm")), "archive", *flags.split(), *rest.split()],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise CannotArchive(f"packaging {what} failed:\n{done.stdout}")
    return folder / name

"""A compiler in an interpreter of its own: what is handed over, how it is started, and what it says.

The program goes over as text with its tensors (`plain_program.py`), into a folder with the files that read it. The
compiler's interpreter needs torch and the compiler; it never sees this package, nor this interpreter's paths.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..interface import CompileError, Weights
from .source_program import SourceProgram, parameter_name

_HERE = Path(__file__).parent
_TRAVELS = ("compile_job.py", "source_module.py", "unrolled.py")
_PACKAGE = __package__.partition(".")[0]
_LAST_LINES = 20


@dataclass(frozen=True)
class Toolchain:
    """A compiler as a Python package."""

    module: str
    """The package with `trace`, e.g. torch_neuronx."""
    install: str
    """Where the real one comes from, as a sentence for people."""


@dataclass(frozen=True)
class CompileReply:
    """What a compiler did with a program."""

    versions: dict[str, str]
    """Of what made it: module, version, torch, python. Empty where it failed."""
    error: str
    """The name of the exception that it failed with; empty where it did not."""
    message: str
    log: str


def trace(
    toolchain: Toolchain,
    program: SourceProgram,
    weights: Weights,
    output: Path,
    options: Mapping[str, Any],
    python: Path | None,
    *,
    strip_weights: bool,
) -> CompileReply:
    """Have `toolchain.module.trace(module, inputs, **options)` save its ScriptModule to `output`.

    `options` are what JSON can hold. `python` is the interpreter; None: this one. `strip_weights`: save it without the
    weights, which the compiler keeps apart.

    Raises:
        CompileError: the interpreter does not start or lacks the toolchain, or it died of the program.
    """
    with tempfile.TemporaryDirectory(prefix="toolchain-") as scratch:
        folder = Path(scratch)
        _hand_over(folder, program, weights)
        job = {
            "module": toolchain.module,
            "options": dict(options),
            "output": str(output),
            "strip_weights": strip_weights,
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        log = _run(folder, python)
        return _answer(toolchain, folder / "reply.json", log, python)


def _hand_over(folder: Path, program: SourceProgram, weights: Weights) -> None:
    for name in _TRAVELS:
        shutil.copyfile(_HERE / name, folder / name)
    (folder / "program.py").write_text(program.source, encoding="utf-8")
    given = {**weights, **program.extra_tensors}
    tensors = {parameter_name(index): given[name].detach() for index, name in enumerate(program.names)}
    torch.save(tensors, folder / "tensors.pt")
    torch.save(list(program.examples), folder / "inputs.pt")


def _run(folder: Path, python: Path | None) -> str:
    """Start the interpreter and wait for it. Returns what it printed last."""
    command = [str(python or sys.executable), str(folder / "compile_job.py"), str(folder)]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=_environment(python),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise CompileError(f"compiler_python: {python} cannot be started: {error}") from error
    return "\n".join(done.stdout.splitlines()[-_LAST_LINES:])


def _environment(python: Path | None) -> dict[str, str]:
    """This process's; another interpreter is not shown where this one finds this package, and perhaps its torch."""
    paths = [Path(path).absolute() for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    kept = [str(path) for path in paths if python is None or not (path / _PACKAGE).is_dir()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(kept)}


def _answer(toolchain: Toolchain, reply: Path, log: str, python: Path | None) -> CompileReply:
    where = f"compiler_python: {python}" if python else "this interpreter"
    if not reply.is_file():
        raise CompileError(f"{toolchain.module} in {where} ended without an answer:\n{log}")
    told = json.loads(reply.read_text(encoding="utf-8"))
    if "missing" in told:
        raise CompileError(f"{where} has no working {toolchain.module} ({told['missing']}). {toolchain.install}")
    if "placeholder" in told:
        raise CompileError(f"{where} has {placeholder_message(toolchain, told['placeholder'])}")
    if "error" in told:
        return CompileReply({}, told["error"], told["message"].strip(), told["log"])
    return CompileReply({key: str(value) for key, value in told.items()}, "", "", log)


def placeholder_message(toolchain: Toolchain, version: str) -> str:
    """What the package of that name on PyPI is, and what to do about it."""
    return (
        f"a {toolchain.module} ({version}) that has no trace(): the package of this name on PyPI is an empty "
        f"placeholder. Remove it (pip uninstall {toolchain.module.replace('_', '-')}). {toolchain.install}"
    )

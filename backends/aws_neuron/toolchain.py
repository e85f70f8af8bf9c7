"""Compilation in a separate interpreter: its input files, the process, and its reply.

The program is written as Python source with its tensors (`source_program.py`) to a directory with the files that read
it. The compiler's interpreter needs torch and the compiler; it uses neither this package nor this interpreter's paths.
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
from ..torch_files import torch_file
from .device import Toolchain, placeholder_message
from .source_program import SourceProgram

_HERE = Path(__file__).parent
_PACKAGE = __package__.partition(".")[0]
_LAST_LINES = 20


@dataclass(frozen=True)
class CompileReply:
    """Result of one compilation."""

    versions: dict[str, str]
    """Versions of the toolchain: module, version, torch, python. Empty if the compilation failed."""
    error: str
    """Name of the exception; empty if the compilation succeeded."""
    message: str


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
    """Run `toolchain.module.trace(module, inputs, **options)` and save its ScriptModule to `output`.

    `options` must be representable in JSON. `python` is the interpreter; None: this one. `strip_weights`: save the
    module without its weights, which the compiler must have kept apart.

    Raises `CompileError`: the interpreter does not start or lacks the toolchain, or it crashed.
    """
    with tempfile.TemporaryDirectory(prefix="toolchain-") as scratch:
        folder = Path(scratch)
        for name in ("compile_job.py", "source_module.py", "unrolled.py"):
            shutil.copyfile(_HERE / name, folder / name)
        (folder / "program.py").write_text(program.source, encoding="utf-8")
        contents = {"tensors.pt": program.tensors(weights), "inputs.pt": list(program.signature.example_inputs())}
        for name, content in contents.items():
            with torch_file(folder / name) as file:
                torch.save(content, file)
        job = {
            "module": toolchain.module,
            "options": dict(options),
            "output": str(output),
            "strip_weights": strip_weights,
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        return _reply(toolchain, folder / "reply.json", _run(folder, python), python)


def _run(folder: Path, python: Path | None) -> str:
    """Run the interpreter to its end, and return the last lines that it printed."""
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
    """Return the environment, for another interpreter without the PYTHONPATH of this package.

    That path may have this interpreter's torch as well.
    """
    paths = [Path(path).absolute() for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    kept = [str(path) for path in paths if python is None or not (path / _PACKAGE).is_dir()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(kept)}


def _reply(toolchain: Toolchain, file: Path, log: str, python: Path | None) -> CompileReply:
    where = f"compiler_python: {python}" if python else "this interpreter"
    if not file.is_file():
        raise CompileError(f"{toolchain.module} in {where} ended without a reply:\n{log}")
    reply = json.loads(file.read_text(encoding="utf-8"))
    if "missing" in reply:
        raise CompileError(f"{where} has no working {toolchain.module} ({reply['missing']}). {toolchain.install}")
    if "placeholder" in reply:
        raise CompileError(f"{where} has {placeholder_message(toolchain, reply['placeholder'])}")
    if "error" in reply:
        return CompileReply({}, reply["error"], reply["message"].strip())
    return CompileReply({key: str(value) for key, value in reply.items()}, "", "")

"""Script that traces and compiles one program, in the interpreter that has the compiler.

    python compile_job.py DIRECTORY

DIRECTORY holds `job.json`, `tensors.pt`, `inputs.pt` and the source of the program. The script saves the compiled
program to the path in the job, and writes its result to `reply.json`. It imports torch (1.13 or later), the toolchain
and the two files beside it, nothing else of this package, and works with Python 3.8.
"""

from __future__ import annotations

import json
import platform
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

_BESIDE = ("source_module", "unrolled")
"""Modules in the directory of this file, which Python searches first."""


def main(folder: Path) -> None:
    """Run the job of a directory, and write the reply."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    try:
        reply = _compile(folder, job)
    except Exception as error:  # noqa: BLE001 - any failure of a compiler is reported to the caller
        reply = {"error": type(error).__name__, "message": str(error)}
    (folder / "reply.json").write_text(json.dumps(reply), encoding="utf-8")


def _compile(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    try:
        toolchain = import_module(job["module"])
    except ImportError as error:
        return {"missing": str(error)}
    if not hasattr(toolchain, "trace"):
        return {"placeholder": str(getattr(toolchain, "__version__", "without a version"))}
    module = _module(folder)
    inputs = tuple(torch.load(str(folder / "inputs.pt")))
    with torch.no_grad():
        traced = toolchain.trace(module, inputs, **job["options"])
    if job["strip_weights"]:
        # Weights that the compiler keeps apart are set at every load: only their shapes are saved, of one number each.
        weights = module.state_dict().items()
        toolchain.replace_weights(traced, {name: held.new_zeros(()).expand(held.shape) for name, held in weights})
    torch.jit.save(traced, job["output"])
    return {
        "module": job["module"],
        "version": str(getattr(toolchain, "__version__", "unknown")),
        "torch": torch.__version__.partition("+")[0],
        "python": platform.python_version(),
    }


def _module(folder: Path) -> torch.nn.Module:
    source_module, unrolled = (import_module(name) for name in _BESIDE)
    operators = {"lstm": unrolled.lstm, "rnn": unrolled.rnn}
    source = (folder / "program.py").read_text(encoding="utf-8")
    module: torch.nn.Module = source_module.SourceModule(source, torch.load(str(folder / "tensors.pt")), operators)
    return module.eval()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

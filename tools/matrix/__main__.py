"""`make matrix`: other releases of Python, torch and every dependency, to package with and to serve on.

A packaging environment runs the core of the tests and packages every test model. A host has TorchServe without this
package: it serves these archives through TorchServe's own loader, and every answer is compared with eager mode.
Environments stay in `.matrix/`. The printed table is that of docs/backends.md. Releases of torch bring gigabytes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".matrix"
# pyproject.toml tells uv that torch needs nothing of CUDA, which is so for the build of the lock file alone.
_UV = (str(Path(sys.executable).with_name("uv")), "--no-config")
_TESTS = ("pytest>=8,<9", "pytest-timeout", "pytest-xdist", "hypothesis", "jsonschema", "orjson", "vermin", "editables")
_CORE = (
    *("tests/lowering/test_exactness.py", "tests/lowering/test_request_lowering.py"),
    *("tests/lowering/loops/test_loops.py", "tests/backends/test_engines.py", "tests/backends/program_source"),
    *("tests/backends/native/test_rewrite.py", "tests/handlers/formats", "tests/inference"),
)
"""The tests that run in every packaging environment."""


class Environment(NamedTuple):
    """A release of Python and one of torch."""

    python: str
    torch: str
    others: tuple[str, ...] = ()
    """Further packages of a host; for packaging, options of their installation."""

    @property
    def title(self) -> str:
        """The releases in words."""
        return ", ".join((f"Python {self.python}", f"torch {self.torch}", *self.others))

    @property
    def folder(self) -> Path:
        """The folder of its virtual environment."""
        return WORK / "-".join((self.python, self.torch, *self.others)).replace("=", "")


LOWEST = ("--resolution=lowest-direct",)
"""Every other dependency at the lowest release that pyproject.toml allows."""
PACKAGERS = (
    Environment("3.11", "2.13.0"),
    Environment("3.13", "2.15.0"),
    Environment("3.10", "2.11.0"),
    Environment("3.10", "2.11.0", LOWEST),
    Environment("3.14", "2.15.0"),
)
SERVED = PACKAGERS[:2]
"""Those whose archives every host serves."""
HOSTS = (
    Environment("3.9", "2.1.2", ("numpy==1.26.4", "onnxruntime==1.19.2")),
    Environment("3.9", "2.4.1", ("numpy==1.26.4", "onnxruntime==1.19.2")),
    Environment("3.9", "2.4.1"),
    Environment("3.11", "2.13.0", ("numpy==2.4.6", "onnxruntime==1.31.1")),
    Environment("3.13", "2.15.0", ("numpy==2.4.6", "onnxruntime==1.31.1")),
)


class NotHere(RuntimeError):
    """An interpreter or a package that this machine does not have. The message is for the table."""


def main() -> int:
    """Run the environments, and print a table; returns 1 if a result does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tools.matrix", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="environments at a time, of some 4 GB each (default: 1)")
    options = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    results: dict[str, tuple[str, bool]] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for kind, run, environments in (("package", _package, PACKAGERS), ("serve", _serve, HOSTS)):
            titles = [f"{kind}: {row.title}" for row in environments]
            results |= zip(titles, pool.map(partial(_result, run), environments), strict=True)
    print(f"| {time.strftime('%Y-%m-%d')}, Linux, x86-64 | result |\n|---|---|")
    for title, (text, holds) in results.items():
        print(f"| {title} | {text if holds else f'**{text}**'} |")
    return 0 if all(holds for _, holds in results.values()) else 1


def _result(run: Callable[[Environment], tuple[str, bool]], row: Environment) -> tuple[str, bool]:
    """Return a cell of the table, and whether it holds."""
    try:
        return run(row)
    except NotHere as error:
        return f"not run: {error}", True


def _package(row: Environment) -> tuple[str, bool]:
    extras = ["-e", f"{ROOT}[onnxruntime,redis,serve,sign]"]
    # The tools of the tests come after: their lowest releases mean nothing.
    python = _made(row, [[*row.others, f"torch=={row.torch}", *extras], _TESTS])
    # Other releases deprecate other names.
    tests = ["-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-m", "not long", "-W", "default", *_CORE]
    passed, passes = _last_line([python, *tests], "passed")
    models, packages = _last_line([python, "-m", "tools.matrix.archives", str(row.folder / "archives")], "archives")
    return f"{passed.partition(' in ')[0]}; {models}", passes and packages


def _serve(row: Environment) -> tuple[str, bool]:
    python = _made(row, [[f"torch=={row.torch}", "torchserve==0.12.0", "pyyaml", *row.others]])
    engines = ["native", "eager", *(["onnxruntime"] if any("onnxruntime" in name for name in row.others) else [])]
    served = [packager for packager in SERVED if (packager.folder / "archives" / "requests.json").is_file()]
    script = str(Path(__file__).with_name("host.py"))
    lines = [
        (packager.torch, _last_line([python, script, str(packager.folder / "archives"), *engines], "exact"))
        for packager in served
    ]
    text = "; ".join(f"archives of torch {torch}: {line}" for torch, (line, _) in lines)
    return text or "not run: there are no archives", all(holds for _, (_, holds) in lines)


def _made(row: Environment, installations: Sequence[Sequence[str]]) -> str:
    """Make an environment, or use the one that is there; returns its interpreter, or raises `NotHere`."""
    python, done = row.folder / "bin" / "python", row.folder / "done"
    if not done.is_file():
        shutil.rmtree(row.folder, ignore_errors=True)
        pyenv = sorted(map(str, Path.home().glob(f".pyenv/versions/{row.python}.*/bin/python")))
        interpreter = (pyenv or [row.python])[-1]  # uv finds others
        _install([*_UV, "venv", "--quiet", "--python", interpreter, str(row.folder)])
        for packages in installations:
            _install([*_UV, "pip", "install", "--quiet", "--python", str(python), *packages])
        done.touch()
    return str(python)


def _install(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotHere(f"does not install: {' '.join(done.stderr.split())[:200]}")


def _last_line(command: Sequence[str], word: str) -> tuple[str, bool]:
    """Run a command; returns the last line that it printed with a word, and whether it succeeded."""
    print(" ".join(command[:4]), flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    lines = [line.strip("= ") for line in done.stdout.splitlines() if word in line]
    if done.returncode:
        sys.stderr.write(done.stdout)
    return (lines or [f"exit code {done.returncode}"])[-1], done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())

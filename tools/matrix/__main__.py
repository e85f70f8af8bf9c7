"""`make matrix`: other releases of Python, torch and every dependency, to package with and to serve on.

A packaging environment runs the core of the tests and packages every test model. A host has TorchServe without this
package: it serves these archives through TorchServe's own loader, and every answer is compared with eager mode.
Environments stay in `.matrix/`. The table in docs/backends.md is written anew. Releases of torch bring gigabytes.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "backends.md"
WORK = ROOT / ".matrix"
BEGIN, END = "<!-- make matrix writes this table -->\n", "<!-- end of the table -->\n"
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


class Result(NamedTuple):
    """A row of the table."""

    title: str
    text: str
    holds: bool = True


class NotHere(RuntimeError):
    """An interpreter or a package that this machine does not have. The message is for the table."""


def main() -> int:
    """Run the environments; returns 1 if a result does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tools.matrix", description=__doc__)
    parser.add_argument("--only", default="", help="only rows whose title contains this text; no page is written")
    parser.add_argument("--jobs", type=int, default=1, help="environments at a time, of some 4 GB each (default: 1)")
    options = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    results: list[Result] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for kind, run, rows in (("package", _package, PACKAGERS), ("serve", _serve, HOSTS)):
            chosen = [row for row in rows if options.only in f"{kind}: {row.title}"]
            results += pool.map(lambda row, kind=kind, run=run: _result(f"{kind}: {row.title}", run, row), chosen)
    print(table(results))
    if not options.only:
        PAGE.write_text(with_table(PAGE.read_text("utf-8"), table(results)), "utf-8")
    return 0 if all(result.holds for result in results) else 1


def table(results: Sequence[Result]) -> str:
    """Return the results as they stand in the page."""
    date = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    rows = [f"| {result.title} | {result.text if result.holds else f'**{result.text}**'} |" for result in results]
    return "\n".join([f"| {date}, Linux, x86-64 | result |", "|---|---|", *rows, ""])


def with_table(page: str, text: str) -> str:
    """Return a page with another table between its marks."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + text + END + rest.partition(END)[2]


def _result(title: str, run: Callable[[Environment], tuple[str, bool]], row: Environment) -> Result:
    try:
        return Result(title, *run(row))
    except NotHere as error:
        return Result(title, f"not run: {error}")


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

"""C++ compiler of the packaging machine: its command, whether it works, and running it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from . import target_machine
from .interface import CompileError


def compiler() -> str:
    """Return the command of the C++ compiler."""
    return os.environ.get("CXX", "g++")


def unavailable_reason(standard: str, headers: Sequence[str]) -> str | None:
    """Return why code of a standard (`c++17`) with these headers cannot be compiled; None if it can."""
    return target_machine.unsupported_reason() or _compiler_problem(compiler(), standard, tuple(headers))


@cache
def _compiler_problem(compiler: str, standard: str, headers: tuple[str, ...]) -> str | None:
    """A problem of the C++ compiler. It is tried, because a compiler without its headers is found as well."""
    install = "install one (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++), or name yours in CXX"
    if shutil.which(compiler) is None:
        return f"there is no C++ compiler {compiler} here: {install}"
    includes = "".join(f"#include <{header}>\n" for header in (*headers, "vector"))
    options = [f"-std={standard}", "-shared", "-fPIC", *(["-fopenmp"] if "omp.h" in headers else [])]
    reason = probe(compiler, f"{includes}int probe() {{ return std::vector<int>(1).at(0); }}\n", options)
    return None if reason is None else f"the C++ compiler {compiler} does not work ({reason}): {install}"


def reject_instruction_flags(args: Sequence[str]) -> None:
    """Reject compiler arguments that choose an instruction set.

    Hosts are checked only for the instruction set of the target.

    Raises `CompileError`: an argument chooses an instruction set.
    """
    for arg in args:
        if arg.startswith("-m") and not arg.startswith("-mtune="):
            raise CompileError(
                f"compiler_args: {arg} chooses an instruction set, but programs are compiled for the one that every "
                f"host must have ({target_machine.cpu_target().isa}): leave it out"
            )


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a compiler; if this process is interrupted, it ends, with the processes that it started."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            stdout, stderr = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def probe(compiler: str, text: str, options: Sequence[str]) -> str | None:
    """Return why a compiler cannot compile a text with these options; None if it can."""
    with tempfile.TemporaryDirectory(prefix="probe-") as scratch:
        source = Path(scratch) / "probe.cpp"
        source.write_text(text, encoding="utf-8")
        return failure(run([compiler, *options, str(source), "-o", f"{scratch}/probe.so"]))


def failure(done: subprocess.CompletedProcess[str]) -> str | None:
    """Return the first line about an error that a compiler printed; None if it succeeded."""
    lines = (line.strip() for line in done.stderr.splitlines() if "error" in line)
    return next(lines, f"exit code {done.returncode}") if done.returncode else None


def strip(library: Path) -> None:
    """Strip debug symbols, four fifths of the file, if `strip` is installed; it comes with every compiler."""
    if (tool := shutil.which("strip")) is not None:
        subprocess.run([tool, "--strip-all", str(library)], check=True, capture_output=True)

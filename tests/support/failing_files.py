"""File operations that fail, in a process started with `environment`; see `failing_files.cpp`."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

from torchserve_neuron_lstm.backends import cpp_compiler

SOURCE = Path(__file__).with_name("failing_files.cpp")


class Fault(IntEnum):
    """Faults, by their numbers in `failing_files.cpp`."""

    NONE = 0
    """No call fails; all are recorded."""
    USUAL = 1
    """One call fails: no space, no permission, an error of the device or no lock, as fits the call."""
    RARER = 2
    """One call fails with another error that fits."""
    PART = 3
    """One call reads or writes half of the bytes."""
    FULL = 4
    """The disk is full from that call on."""
    READ_ONLY = 5
    """The disk is read-only from that call on."""
    BROKEN = 6
    """The disk does nothing from that call on."""


def build(directory: Path, source: Path = SOURCE) -> Path:
    """Compile a library into `directory`."""
    library = directory / f"{source.stem}.so"
    flags = ("-std=c++17", "-O1", "-fPIC", "-shared", str(source), "-o", str(library), "-ldl")
    subprocess.run([cpp_compiler.compiler(), *flags], check=True)
    return library


def environment(library: Path) -> dict[str, str]:
    """The environment of a process whose file operations can fail."""
    return {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}


def trials(library: Path, program: Path, *words: object, **variables: str) -> list[dict[str, Any]]:
    """The lines of JSON that a program writes, whose file operations can fail."""
    command = [sys.executable, str(program), *map(str, words)]
    variables = {**environment(library), **variables}
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=580, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return [json.loads(line) for line in ended.stdout.splitlines()]


class FailingFiles:
    """The library in this process."""

    def __init__(self) -> None:
        self._code = ctypes.CDLL(None)
        self._code.faults_begin.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_long]
        self._code.faults_end.restype = ctypes.c_long
        self._code.faults_call.argtypes = [ctypes.c_long]
        self._code.faults_call.restype = ctypes.c_char_p

    @contextmanager
    def below(self, prefixes: Sequence[Path | str], fault: Fault, successes: int = 0) -> Iterator[list[str]]:
        """Let calls on files fail whose paths begin with a prefix, after so many `successes`.

        Yields a list, which has the calls that failed (without a fault: all calls) after the context.
        """
        calls: list[str] = []
        self.begin(prefixes, fault, successes)
        try:
            yield calls
        finally:
            calls += self.end()

    def begin(self, prefixes: Sequence[Path | str], fault: Fault, successes: int = 0) -> None:
        """Begin as `below` does, until `end` is called."""
        self._code.faults_begin("\n".join(map(str, prefixes)).encode(), int(fault), successes)

    def end(self) -> list[str]:
        """Let all calls succeed again, and return those of the list of `below`, also when asked once more."""
        count = self._code.faults_end()
        return [self._code.faults_call(index).decode(errors="replace") for index in range(count)]


def some_of_each(calls: Sequence[str], count: int) -> list[int]:
    """Choose `count` recorded calls of each kind, the first included; a kind is a function on a suffix.

    Returns for each chosen call the number of calls before it.
    """
    kinds: dict[tuple[str, str, str], list[int]] = {}
    for index, call in enumerate(calls):
        function, _, path = call.partition(" ")
        kinds.setdefault((function, Path(path).parts[1] if path else "", Path(path).suffix), []).append(index)
    shares = [one / max(count - 1, 1) for one in range(count)]
    return sorted({found[int(share * (len(found) - 1))] for found in kinds.values() for share in shares})

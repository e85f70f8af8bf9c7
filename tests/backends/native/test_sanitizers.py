"""The recurrent library under GCC's sanitizers: any report ends the program."""

import os
import platform
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
from native_layers import isas_here, lower_here

from torchserve_neuron_lstm.backends import cpp_compiler
from torchserve_neuron_lstm.backends.native import build
from torchserve_neuron_lstm.backends.native.instruction_sets import InstructionSet

HERE = Path(__file__).parent
MEMORY, THREADS = "address,undefined", "thread"
PLANTED = [(MEMORY, "overrun"), (MEMORY, "overflow"), (THREADS, "race")]
LAW_FILES = ["test_recurrence.py", "test_packing.py", "test_engine.py"]
SINGLE = [InstructionSet(isa, frozenset()) for isa in isas_here()]
"""Instruction sets of this host, in float32; the fastest first."""
pytestmark = pytest.mark.xdist_group("sanitizers")


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="sanitized-")


def compiler_or_skip(sanitizers: str) -> str:
    reason = cpp_compiler.unavailable_reason(build.STANDARD, build.HEADERS)
    if reason is not None:
        pytest.skip(f"not run: {reason}")
    program = Path(folder().name) / "probe.cpp"
    program.write_text("int main() {}\n")
    command = [cpp_compiler.compiler(), f"-fsanitize={sanitizers}", str(program), "-o", str(program.with_suffix(""))]
    probe = subprocess.run(command, capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"not run: the compiler has no -fsanitize={sanitizers}: {probe.stderr.strip()[-200:]}")
    return cpp_compiler.compiler()


@cache
def program(sanitizers: str, instructions: InstructionSet) -> Path:
    file = Path(folder().name) / f"{sanitizers}-{instructions.library}"
    command = [
        *(compiler_or_skip(sanitizers), "-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", "-pthread"),
        *(*instructions.options, f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"),
        *("-I", str(HERE.parents[1] / "support"), str(build.SOURCE), str(HERE / "sanitized.cpp"), "-o", str(file)),
    ]
    subprocess.run(command, check=True)
    return file


def run(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(file), *arguments], capture_output=True, text=True, timeout=550, check=False)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("instructions", [*SINGLE, *lower_here()], ids=lambda one: one.library)
@pytest.mark.parametrize("sanitizers", [MEMORY, THREADS])
def test_nothing_is_reported_on_any_instruction_set(sanitizers: str, instructions: InstructionSet) -> None:
    done = run(program(sanitizers, instructions))

    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr[-4000:]
    assert int(done.stdout.split()[0]) >= 42


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("sanitizers", "error"), PLANTED)
def test_a_planted_error_is_reported(sanitizers: str, error: str) -> None:
    done = run(program(sanitizers, SINGLE[0]), error)

    assert done.returncode != 0
    assert "ERROR" in done.stderr or "WARNING" in done.stderr or "runtime error" in done.stderr


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="where the sanitizer's library is preloaded was tried on x86-64"
)
@pytest.mark.parametrize("file", LAW_FILES)
def test_the_laws_hold_when_callers_and_library_are_watched(file: str, tmp_path: Path) -> None:
    compiler = compiler_or_skip(MEMORY)
    wrapper = tmp_path / "g++"
    wrapper.write_text(f'#!/bin/sh\nexec {compiler} "$@" -O1 -fsanitize={MEMORY} -fno-sanitize-recover=all\n')
    wrapper.chmod(0o755)
    libraries = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    environment = {
        **os.environ,
        "CXX": str(wrapper),
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long", str(HERE / file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1700, check=False)

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "passed" in done.stdout

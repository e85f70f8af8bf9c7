from pathlib import Path

import pytest

from torchserve_neuron_lstm.backends import cpp_compiler
from torchserve_neuron_lstm.backends.inductor import Inductor
from torchserve_neuron_lstm.backends.interface import CompileError
from torchserve_neuron_lstm.backends.native.engine import Native


def test_a_missing_compiler_is_named_with_the_way_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    told = str(cpp_compiler.unavailable_reason("c++17", ()))

    assert "no C++ compiler no-such-compiler here: install one" in told
    assert "apt-get install g++" in told


def test_a_compiler_that_does_not_work_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "broken-g++"
    compiler.write_text("#!/bin/sh\necho 'probe.cpp:1:10: fatal error: omp.h: No such file' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))

    assert "does not work (probe.cpp:1:10: fatal error: omp.h" in str(cpp_compiler.unavailable_reason("c++17", ()))


def test_a_compiler_that_says_nothing_is_named_by_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that is killed prints no error."""
    monkeypatch.setenv("CXX", "false")

    assert "the C++ compiler false does not work (exit code 1)" in str(cpp_compiler.unavailable_reason("c++17", ()))


def test_the_headers_are_tried() -> None:
    """A compiler that works may lack one of them."""
    assert cpp_compiler.unavailable_reason("c++17", ("atomic", "omp.h")) is None
    assert "no_such_header.h" in str(cpp_compiler.unavailable_reason("c++17", ("atomic", "no_such_header.h")))


@pytest.mark.parametrize(("engine", "header"), [(Inductor(), "omp.h"), (Native(), "atomic"), (Native(), "thread")])
def test_engines_try_the_compiler_with_their_headers(
    engine: Inductor | Native, header: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "quoting-g++"
    quote = 'for arg; do case $arg in *.cpp) echo "error:" $(cat "$arg") >&2;; esac; done'
    compiler.write_text(f"#!/bin/sh\n{quote}\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))

    assert f"#include <{header}>" in str(engine.unavailable())


@pytest.mark.parametrize("arg", ["-march=native", "-mavx512f"])
def test_arguments_that_choose_an_instruction_set_are_rejected(arg: str) -> None:
    """Hosts are checked for the instruction set of the target alone. Tuning adds no instruction."""
    cpp_compiler.reject_instruction_flags(("-O3", "-mtune=native", "-fno-math-errno"))
    with pytest.raises(CompileError, match=f"compiler_args: {arg} chooses an instruction set.*: leave it out"):
        cpp_compiler.reject_instruction_flags(("-O3", arg))

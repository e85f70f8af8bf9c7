"""The loop of multiply-adds: what it counts, and a compiler that fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.fma.loop import CannotCompile, FmaLoop


def test_a_loop_is_compiled_and_counts_its_operations(tmp_path: Path) -> None:
    """The best of some calls counts."""
    loop = FmaLoop(1, tmp_path)
    loop()

    assert loop.gflops([0.02, 0.01]) == 2 * loop.gflops([0.02]) > 0


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark needs one."""
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho 'no such option' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))

    with pytest.raises(CannotCompile, match="no such option"):
        FmaLoop(1, tmp_path)

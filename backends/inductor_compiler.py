"""Compilation by AOTInductor: a program of fixed sizes becomes a weight-stripped shared library.

LSTMs become oneDNN's fused layer. GRUs and plain RNNs stay calls of the abstract operator: torch has no fused layer for
them that compiles, and unrolled each takes half a minute to compile.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from ..bucketing.shapes import Bucket
from . import cpp_compiler, masked
from .error_causes import causes
from .exported_program import quiet, specialize
from .interface import CompileError, CompileSettings, Tensors
from .target_machine import cpu_target


def compile_library(
    program: ExportedProgram, bucket: Bucket, settings: CompileSettings, library: Path, calls: Path
) -> None:
    """Write the library for one bucket, and the list of the operators that it calls.

    Raises `CompileError`: inductor or the C++ compiler rejects the program, an argument or the working directory.
    """
    cpp_compiler.reject_instruction_flags(settings.args)
    with _scratch(settings.workdir) as scratch:
        package = scratch / "program.pt2"
        scripted = settings.workdir is not None or settings.args
        compiler = _compiler_by_script(scratch, settings.args) if scripted else cpp_compiler.compiler()
        try:
            with _private_caches(scratch, keep=settings.workdir is not None), quiet(), torch.no_grad():
                _compile(_specialized(program, bucket), package, compiler)
        except Exception as error:
            what = _reason(error)
            raise CompileError(f"inductor cannot compile for {bucket.batch} x {bucket.length}: {what}") from error
        _unpack(package, library, calls)
    cpp_compiler.strip(library)


@contextlib.contextmanager
def _scratch(workdir: Path | None) -> Iterator[Path]:
    """A directory for intermediate files: deleted afterwards, or kept below `workdir`.

    A kept one is deleted by the next compilation.

    Raises `CompileError`: inductor cannot use that directory, because it does not quote paths in commands.
    """
    if workdir is None:
        with tempfile.TemporaryDirectory(prefix="inductor-") as scratch:
            yield Path(scratch)
        return
    if any(sign.isspace() for sign in str(workdir)):
        raise CompileError(f"compiler_workdir: inductor cannot work in a folder with a space in its path: {workdir}")
    kept = workdir / "inductor"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    yield kept


def _compiler_by_script(scratch: Path, args: Sequence[str]) -> str:
    """Write a script that inductor calls as the C++ compiler.

    Inductor has no option for further arguments. The script records each command, so that people can repeat it, and has
    the compiler's name, which inductor inspects.
    """
    compiler = cpp_compiler.compiler()
    script = scratch / Path(compiler).name
    call = f'{shlex.quote(compiler)} "$@" {shlex.join(args)}'
    script.write_text(
        f"""#!/bin/sh
case "$1" in -dump*|--version) exec {shlex.quote(compiler)} "$@" ;; esac
{{
  printf "mkdir -p '%s' && cd '%s' &&" "$PWD" "$PWD"
  for word in {call}; do printf " '%s'" "$word"; done
  echo
}} >> {shlex.quote(str(scratch / "commands.txt"))}
exec {call}
""",
        encoding="utf-8",
    )
    script.chmod(0o700)
    return str(script)


def _reason(error: BaseException) -> str:
    """The error in one line; for the C++ compiler, the first line that it printed about it."""
    # torch's class is known by its name: to import it makes a folder.
    compiling = (cause for cause in causes(error) if type(cause).__name__ == "CppCompileError")
    lines = str(getattr(next(compiling, None), "output", "")).splitlines()
    said = next((line for line in lines if "error" in line), "\n".join(lines[:1]))
    return (said.strip() or str(error).strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def _private_caches(scratch: Path, *, keep: bool) -> Iterator[None]:
    """Redirect the files of inductor and the compiler below `scratch`: several processes compile at once."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR")
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.update(dict.fromkeys(names, str(scratch)))
    try:
        from torch._inductor.utils import fresh_cache  # makes a folder while it is imported, so not above

        with fresh_cache(dir=str(scratch), delete=not keep):
            yield
    finally:
        for name in names:
            os.environ.pop(name)
        os.environ.update(before)


def _specialized(program: ExportedProgram, bucket: Bucket) -> ExportedProgram:
    """The program at one bucket's sizes, in operators that inductor compiles."""
    # inductor invents names for constants that are no buffers, and they could not be found at load.
    fixed = specialize(program, bucket, constants_as_buffers=True)
    if not torch.backends.mkldnn.is_available():
        return fixed
    decomposed: ExportedProgram = fixed.run_decompositions({torch.ops.neuron_lstm.lstm.default: _lstm})
    return decomposed


def _lstm(x: Any, lengths: Any, h_0: Any, c_0: Any, *options: Any) -> Any:
    if x.dtype != torch.float32:  # oneDNN's layer computes nothing else on every machine
        return NotImplemented
    return masked.fused_lstm(onednn_lstm, x, lengths, h_0, c_0, *options)


def onednn_lstm(x: torch.Tensor, states: Tensors, weights: Tensors) -> tuple[torch.Tensor, Tensors]:
    """Compute one LSTM layer in one direction, fused over all timesteps."""
    h_0, c_0 = states
    w_ih, w_hh, *biases = weights
    # It always needs a bias, and reads its inputs by address.
    b_ih, b_hh = biases or [w_ih.new_zeros(w_ih.shape[0])] * 2
    y, h_n, c_n, _ = torch.ops.aten.mkldnn_rnn_layer(
        *(x.contiguous(), w_ih, w_hh, b_ih, b_hh, h_0.contiguous(), c_0.contiguous()),
        False,  # reverse: done by _Rows, which knows each row's length
        *([], 2, h_0.shape[1], 1, True, False, False, False),  # 2: LSTM
    )
    return y, (h_n, c_n)


@contextlib.contextmanager
def _only_vectors_of(bits: int) -> Iterator[None]:
    """Let inductor know only instruction sets with vectors of `bits`.

    It would compile a test program for each kind of AVX-512 that this machine has, in every compiling process.
    """
    from torch._inductor import cpu_vec_isa

    known = list(cpu_vec_isa.supported_vec_isa_list)
    cpu_vec_isa.supported_vec_isa_list[:] = [isa for isa in known if isa.bit_width() == bits]
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    try:
        yield
    finally:
        cpu_vec_isa.supported_vec_isa_list[:] = known
        cpu_vec_isa.valid_vec_isa_list.cache_clear()


def _compile(program: ExportedProgram, package: Path, compiler: str) -> None:
    target = cpu_target()
    configs = {
        "aot_inductor.package_constants_in_so": False,
        # Not even small ones, which would be embedded in the code: the program must stay refittable.
        "always_keep_tensor_constants": True,
        # They would go into a cache that is deleted, and into a directory that all processes share.
        "aot_inductor.precompile_headers": False,
        # The wrapper only calls the computations: half the compile time, two thirds of the size, not slower.
        "aot_inductor.compile_wrapper_opt_level": "Os",
        "cpp.cxx": compiler,
        "cpp.march": target.isa,
        "cpp.simdlen": target.vector_bits,
        "cpp.vec_isa_ok": True,  # checked by target_machine; inductor would run a test program for each instruction set
        # As many threads as the worker is given, not as many as the packaging machine has.
        "cpp.dynamic_threads": True,
        "compile_threads": 1,
    }
    with _only_vectors_of(target.vector_bits):
        torch._inductor.aoti_compile_and_package(program, package_path=str(package), inductor_configs=configs)


def _unpack(package: Path, library: Path, calls: Path) -> None:
    """Extract the files that are needed at run time, without sources, ready to be mapped in place."""
    calls.write_text(json.dumps({"nodes": []}), encoding="utf-8")  # replaced if the package has one
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            target = {".wrapper.so": library, ".wrapper.json": calls}.get("".join(Path(name).suffixes[-2:]))
            if target is not None:
                target.write_bytes(archive.read(name))

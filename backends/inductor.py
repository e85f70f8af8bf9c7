"""AOTInductor engine: a weight-stripped shared library for each bucket, compiled by the machine's
C++ compiler.

LSTMs become oneDNN's fused layer. GRUs and plain RNNs stay calls of the abstract operator, which the serving process
registers too: torch has no fused layer for them that compiles, and unrolled each takes half a minute to compile.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from ..bucketing.shapes import Bucket
from . import cpp_compiler, masked
from . import recurrent_operators as _recurrent_operators  # noqa: F401  registers the operators that libraries call
from .interface import (
    DEFAULTS,
    CompileError,
    CompilerOption,
    CompileSettings,
    LoadedProgram,
    LoadError,
    Precision,
    Requirement,
    Weights,
)
from .module_program import ModuleProgram
from .signature import read_signature, signature_of, write_signature
from .versions import minor_release, release, torch_requirement, torch_version

_LIBRARY = "program.so"
_CALLS = "program.json"
"""List of the operators that the library calls. torch looks for it beside the library, under the
same name.
"""
_OLDEST_TORCH = (2, 13, 0)
"""The oldest release of torch whose inductor compiles for another CPU than that of the machine."""


class Inductor:
    """One program for each bucket."""

    name = "inductor"
    polymorphic = False
    any_shape = False
    precisions: tuple[Precision, ...] = ("float32",)
    options: tuple[CompilerOption, ...] = ("compiler_workdir", "compiler_args")
    pins_torch_minor = True

    def unavailable(self) -> str | None:
        """Return why there is no C++ compiler, or that this torch or machine is not supported."""
        if release(torch_version()) < _OLDEST_TORCH:
            return (
                f"torch {torch_version()} compiles for the CPU of the packaging machine alone: inductor needs torch "
                f"{'.'.join(map(str, _OLDEST_TORCH[:2]))} or later"
            )
        return cpp_compiler.unavailable_reason(("omp.h",))

    def requirements(self) -> tuple[Requirement, ...]:
        """Return torch; hosts need the same minor version."""
        return (torch_requirement(),)

    def host(self) -> Mapping[str, str]:
        """Return the operating system, the machine, its instruction set, and the torch that the code calls."""
        return {**cpp_compiler.host(), "torch": minor_release(torch_version())}

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Return a reason for what is no dispatcher operator.

        Custom operators and those it cannot fuse are called.
        """
        supported = isinstance(node.target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator))
        return None if supported else f"{node.target} is no operator"

    def compile(
        self, program: ExportedProgram, bucket: Bucket | None, directory: Path, settings: CompileSettings = DEFAULTS
    ) -> None:
        """Write the library for one bucket.

        The arguments of `settings` come last on the C++ compiler's command line; its `workdir` keeps the sources, the
        commands and all other files of inductor.

        Raises:
            CompileError: no bucket is given, or inductor or the compiler rejects the program or an argument.
        """
        from .exported_program import quiet

        if bucket is None:
            raise CompileError("inductor compiles for one bucket at a time")
        cpp_compiler.reject_instruction_flags(settings.args)
        signature = signature_of(program, bucket)
        write_signature(signature, directory)
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
            _unpack(package, directory)
        cpp_compiler.strip(directory / _LIBRARY)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Map the library and give it the addresses of the weights.

        Raises:
            LoadError: the code was compiled for another machine, it cannot be mapped, or the weights do not match.
        """
        cpp_compiler.check_host(host)
        _check_torch(host)
        signature = read_signature(directory)
        real = signature.pick_weights(weights)
        torch.set_num_threads(threads)
        runner = _open(directory)
        wanted = runner.get_constant_names_to_original_fqns()
        # All of them, before the first call: otherwise the library would read from address 0.
        shared = {name: real[original] for name, original in wanted.items()}
        runner.update_constant_buffer(shared, False, True, True)  # used at once, none missing, memory not copied
        return ModuleProgram(signature, lambda *inputs: runner.run(list(inputs)), shared.values())


@contextlib.contextmanager
def _scratch(workdir: Path | None) -> Iterator[Path]:
    """A directory for intermediate files: deleted afterwards, or kept below `workdir` until the next
    compilation.

    Raises:
        CompileError: inductor cannot use that directory, because it does not quote paths in commands.
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
    """Write a script that inductor calls as the C++ compiler: inductor has no option for further
    arguments.

    It records each command, so that people can repeat it. It has the compiler's name, which inductor inspects.
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
    from .error_causes import causes

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
    from .exported_program import specialize

    # inductor invents names for constants that are no buffers, and they could not be found at load.
    fixed = specialize(program, bucket, constants_as_buffers=True)
    if not torch.backends.mkldnn.is_available():
        return fixed
    decomposed: ExportedProgram = fixed.run_decompositions({torch.ops.neuron_lstm.lstm.default: _lstm})
    return decomposed


def _lstm(x: Any, lengths: Any, h_0: Any, c_0: Any, *options: Any) -> Any:
    if x.dtype != torch.float32:  # oneDNN computes only float32 on every machine
        return NotImplemented
    return masked.fused_lstm(_onednn_lstm, x, lengths, h_0, c_0, *options)


def _onednn_lstm(
    x: torch.Tensor, states: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
    """One layer in one direction, fused over all timesteps."""
    h_0, c_0 = states
    w_ih, w_hh, *biases = weights
    # It always needs a bias, and reads its inputs by address.
    b_ih, b_hh = biases or [w_ih.new_zeros(w_ih.shape[0])] * 2
    y, h_n, c_n, _ = torch.ops.aten.mkldnn_rnn_layer(
        x.contiguous(),
        w_ih,
        w_hh,
        b_ih,
        b_hh,
        h_0.contiguous(),
        c_0.contiguous(),
        False,  # reverse: done by _Rows, which knows each row's length
        [],
        2,  # LSTM
        h_0.shape[1],
        1,
        True,
        False,
        False,
        False,
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
    target = cpp_compiler.cpu_target()
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
        "cpp.vec_isa_ok": True,  # checked by cpp_compiler; inductor would run a test program for each instruction set
        # As many threads as the worker is given, not as many as the packaging machine has.
        "cpp.dynamic_threads": True,
        "compile_threads": 1,
    }
    with _only_vectors_of(target.vector_bits):
        torch._inductor.aoti_compile_and_package(program, package_path=str(package), inductor_configs=configs)


def _unpack(package: Path, directory: Path) -> None:
    """Extract the files that are needed at run time, without sources, ready to be mapped in place."""
    (directory / _CALLS).write_text(json.dumps({"nodes": []}), encoding="utf-8")  # replaced if the package has one
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            target = {".wrapper.so": _LIBRARY, ".wrapper.json": _CALLS}.get("".join(Path(name).suffixes[-2:]))
            if target is not None:
                (directory / target).write_bytes(archive.read(name))


def _open(directory: Path) -> Any:
    """Map the library in place, so that all workers share its pages.

    torch's own package loader would unpack it into a temporary directory for each worker, and takes more than a second
    to import.
    """
    with cpp_compiler.executable_copy(directory, (_LIBRARY, _CALLS)) as mapped:
        return _map(mapped / _LIBRARY)


def _check_torch(packaged: Mapping[str, str]) -> None:
    here = minor_release(torch_version())
    if packaged.get("torch", here) != here:
        raise LoadError(
            f"the programs were compiled for torch {packaged['torch']}, this host has {here}: "
            f"{cpp_compiler.REPACKAGE_HINT}"
        )


def _map(library: Path) -> Any:
    try:
        json.loads(library.with_name(_CALLS).read_text(encoding="utf-8"))  # else it would call wrong operators
        return torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)
    except (OSError, ValueError) as error:
        raise LoadError(f"{library.with_name(_CALLS)} is missing or damaged: package the model again") from error
    except RuntimeError as error:
        raise LoadError(
            f"{library} cannot be loaded: {str(error).splitlines()[0]}. Package the model on a machine whose system "
            f"and compiler are no newer than this host's, or with backend: onnxruntime"
        ) from error

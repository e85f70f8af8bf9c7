"""AOTInductor: a shared library for each bucket, without weights, compiled by the machine's C++ compiler.

LSTMs become oneDNN's fused layer. GRUs and plain RNNs stay calls of the abstract operator, which the serving process
registers too: torch has no fused kernel for them that compiles, and unrolled they take half a minute each.
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

from ..bucketing.shapes import Bucket
from . import cpp_compiler, masked
from .exported_program import quiet, specialize
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
from .versions import minor_release, torch_requirement, torch_version

_LIBRARY = "program.so"
_CALLS = "program.json"
"""Beside the library and of its name: which operators it calls back. torch looks for it there."""


class Inductor:
    """One program for each bucket."""

    name = "inductor"
    polymorphic = False
    any_shape = False
    precisions: tuple[Precision, ...] = ("float32",)
    pins_torch_minor = True
    options: tuple[CompilerOption, ...] = ("compiler_workdir", "compiler_args")

    def unavailable(self) -> str | None:
        """Whether there is a C++ compiler that makes shared libraries, on a kind of machine that is known."""
        return cpp_compiler.unavailable_reason(("omp.h",))

    def requirements(self) -> tuple[Requirement, ...]:
        """Torch, of the same minor version."""
        return (torch_requirement(),)

    def host(self) -> Mapping[str, str]:
        """The operating system, the machine, its instructions, and the torch that the code calls into."""
        return {**cpp_compiler.host(), "torch": minor_release(torch_version())}

    def refusal(self, node: torch.fx.Node) -> str | None:
        """What is no operator of torch's dispatcher; those that it cannot fuse it calls, others' own included."""
        return None if isinstance(node.target, torch._ops.OpOverload) else f"{node.target} is no operator"

    def compile(
        self,
        program: torch.export.ExportedProgram,
        bucket: Bucket | None,
        directory: Path,
        settings: CompileSettings = DEFAULTS,
    ) -> None:
        """Write the library for one bucket.

        The arguments of `settings` come last on the C++ compiler's command line; its `workdir` keeps sources, commands
        and whatever else inductor wrote.

        Raises:
            CompileError: no bucket is named, or inductor or the compiler refuses the program or an argument.
        """
        if bucket is None:
            raise CompileError("inductor compiles for one bucket at a time")
        cpp_compiler.reject_instruction_flags(settings.args)
        signature = signature_of(program, bucket)
        write_signature(signature, directory)
        with _scratch(settings.workdir) as scratch:
            package = scratch / "program.pt2"
            told = settings.workdir is not None or settings.args
            compiler = _compiler_by_script(scratch, settings.args) if told else cpp_compiler.compiler()
            try:
                with _private_caches(scratch, keep=settings.workdir is not None), quiet(), torch.no_grad():
                    _compile(_specialized(program, bucket), package, compiler)
            except Exception as error:
                what = _reason(error)
                raise CompileError(f"inductor cannot compile for {bucket.batch} x {bucket.length}: {what}") from error
            _unpack(package, directory)
        cpp_compiler.strip(directory / _LIBRARY)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Map the library and point it at the weights.

        Raises:
            LoadError: this machine lacks what the code was compiled for, or cannot map it; or the weights are others.
        """
        cpp_compiler.check_host(host)
        _check_torch(host)
        signature = read_signature(directory)
        real = signature.pick_weights(weights)
        torch.set_num_threads(threads)
        runner = _open(directory)
        wanted = runner.get_constant_names_to_original_fqns()
        # Before the first call, and all of them: the library would read whatever lies at address 0.
        shared = {name: real[original] for name, original in wanted.items()}
        runner.update_constant_buffer(shared, False, True, True)  # in use at once, none missing, memory stays ours
        return ModuleProgram(signature, lambda *inputs: runner.run(list(inputs)), shared.values())


@contextlib.contextmanager
def _scratch(workdir: Path | None) -> Iterator[Path]:
    """A folder for all that is written on the way: gone afterwards, or left below `workdir` until the next time.

    Raises:
        CompileError: inductor cannot work there, for it writes commands without quotes.
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
    """A script for inductor to call as the C++ compiler, for inductor has no word for further arguments.

    It writes down what it calls, to be called again. Its name is the compiler's, for inductor goes by that.
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
    """In one line, what went wrong: where it was the C++ compiler, its own first word on it."""
    found: BaseException | None = error
    while found is not None and type(found).__name__ != "CppCompileError":  # torch's; to import it makes a folder
        found = found.__cause__ or found.__context__
    lines = str(getattr(found, "output", "")).splitlines()
    said = next((line for line in lines if "error" in line), "\n".join(lines[:1]))
    return (said.strip() or str(error).strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def _private_caches(scratch: Path, *, keep: bool) -> Iterator[None]:
    """Whatever inductor and the compiler write goes below `scratch`: several processes compile at once."""
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


def _specialized(program: torch.export.ExportedProgram, bucket: Bucket) -> torch.export.ExportedProgram:
    """The program at one bucket's sizes, in operators that inductor compiles."""
    # inductor invents names for constants that are no buffers, and they could not be found at load.
    fixed = specialize(program, bucket, constants_as_buffers=True)
    if not torch.backends.mkldnn.is_available():
        return fixed
    decomposed: torch.export.ExportedProgram = fixed.run_decompositions({torch.ops.neuron_lstm.lstm.default: _lstm})
    return decomposed


def _lstm(x: Any, lengths: Any, h_0: Any, c_0: Any, *options: Any) -> Any:
    if x.dtype != torch.float32:  # what oneDNN computes on every machine; else torch's own kernel is called
        return NotImplemented
    if masked.is_projected(h_0, c_0):
        return masked.without_projection(_plain_lstm, x, lengths, h_0, c_0, *options)
    return _plain_lstm(x, lengths, h_0, c_0, *options)


def _plain_lstm(
    x: Any, lengths: Any, h_0: Any, c_0: Any, weights: Any, bias: bool, layers: int, both: bool, need_cell: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return masked.masked_lstm(_onednn_lstm, x, lengths, h_0, c_0, weights, layers, both, need_cell)


def _onednn_lstm(
    x: torch.Tensor, states: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
    """One layer in one direction, fused over all timesteps."""
    h_0, c_0 = states
    w_ih, w_hh, *biases = weights
    # It takes a bias in any case, and reads its inputs by address.
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


def _compile(program: torch.export.ExportedProgram, package: Path, compiler: str) -> None:
    target = cpp_compiler.cpu_target()
    torch._inductor.aoti_compile_and_package(
        program,
        package_path=str(package),
        inductor_configs={
            "aot_inductor.package_constants_in_so": False,
            # Not even small ones, whose numbers would be written into the code: other weights may take their place.
            "always_keep_tensor_constants": True,
            # Compiled once into a cache that is thrown away, and into a folder shared by all processes.
            "aot_inductor.precompile_headers": False,
            # The wrapper only calls kernels: half the compile time, a third less to ship, not slower.
            "aot_inductor.compile_wrapper_opt_level": "Os",
            "cpp.cxx": compiler,
            "cpp.march": target.isa,
            "cpp.simdlen": target.vector_bits,
            "cpp.vec_isa_ok": True,  # looked up by us; inductor would compile and run a probe of each kind
            # As many threads as the worker is given, not as many as the packaging machine has.
            "cpp.dynamic_threads": True,
            "compile_threads": 1,
        },
    )


def _unpack(package: Path, directory: Path) -> None:
    """Of what inductor packages, what is needed to run: without its sources, and ready to be mapped in place."""
    (directory / _CALLS).write_text(json.dumps({"nodes": []}), encoding="utf-8")  # unless there are any
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            target = {".wrapper.so": _LIBRARY, ".wrapper.json": _CALLS}.get("".join(Path(name).suffixes[-2:]))
            if target is not None:
                (directory / target).write_bytes(archive.read(name))


def _open(directory: Path) -> Any:
    """The loaded library. Mapped from where it lies, so that all workers share its pages.

    torch's own loader of packages would unpack it into a temporary folder for each worker, and takes more than a second
    to import.
    """
    with cpp_compiler.executable_copy(directory, (_LIBRARY, _CALLS)) as place:
        return _map(place / _LIBRARY)


def _check_torch(packaged: Mapping[str, str]) -> None:
    here = minor_release(torch_version())
    if packaged.get("torch", here) != here:
        raise LoadError(
            f"the programs were compiled for torch {packaged['torch']}, this host has {here}: "
            f"{cpp_compiler.REPACKAGE_HINT}"
        )


def _map(library: Path) -> Any:
    try:
        json.loads(library.with_name(_CALLS).read_text(encoding="utf-8"))  # without it calls would go astray
        return torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)
    except (OSError, ValueError) as error:
        raise LoadError(f"{library.with_name(_CALLS)} is missing or damaged: package the model again") from error
    except RuntimeError as error:
        raise LoadError(
            f"{library} cannot be loaded: {str(error).splitlines()[0]}. Package the model on a machine whose system "
            f"and compiler are no newer than this host's, or with backend: onnxruntime"
        ) from error

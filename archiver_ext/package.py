"""The steps from a command line to an archive, in the order in which they are decided."""

from __future__ import annotations

import glob
import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from ..backends import versions
from ..backends.compilation.pool import compile_processes
from ..backends.cores import available_cores
from ..backends.interface import Backend, Precision
from ..backends.torch_files import disk_size
from ..config.engine_choice import AUTO
from ..config.load import load_config
from ..config.manifest_writer import write_manifest
from ..config.schema import ServingConfig, Tolerance
from ..handlers.runtime.loader import load_archive
from ..handlers.runtime.own_model import load_script
from ..handlers.runtime.placement import threads_per_worker
from ..handlers.runtime.user_code import load_bucket_selector
from ..inference.private_directory import private_directory
from ..inference.reader import ArchiveReader
from ..lowering import LoweringError, lower
from ..lowering.chunks.streaming import check_streamable
from ..lowering.program import LoweredModel, inputs_searched_for_nan, unused_inputs
from . import model_archiver
from .archive import layout
from .archive.workspace import temporary_files_in
from .archive.writer import publish
from .checkpoint import check_finite, is_torchscript, load_state_dict, write_weights
from .errors import PackagingError, refusing
from .evaluation.candidate import CandidateResult, RejectedEngine
from .evaluation.candidate_compiler import CandidateCompiler
from .evaluation.manifest_builder import BuildInput
from .evaluation.selection import candidate_engines, preferred
from .evaluation.trials import AllDiffer, install_engine, prepare_trials, write_constants
from .evaluation.verification_cases import NotRepeatable
from .model_class import importable
from .own_model.beside_programs import compare_once, prepare_shadow, prepare_short
from .own_model.described import non_persistent_buffers
from .own_model.package import OwnModelResult, package_own_model
from .report_parts import cpu_operators
from .user_model import build_model

_LIBRARIES = ("torch", "numpy", "redis", "cryptography", "onnxruntime", "openvino", "ts")
"""Packages that servers may import; a file beside the model would be imported in their place."""


@dataclass(frozen=True)
class PackagingResult:
    """The packaged archive and its evaluation, for the report."""

    archive: Path
    size: int
    """Bytes of the archive."""
    precision: Precision
    """The lowest precision that the YAML allows."""
    selected: CandidateResult
    others: tuple[CandidateResult, ...]
    rejected: tuple[RejectedEngine, ...]
    cpu_operators: list[str]
    """Operators that the selected engine leaves to the CPU."""
    notes: tuple[str, ...]
    """The choices that were made where the user's files leave one."""


def package(flags: model_archiver.Flags, manifest: str, console: Console) -> PackagingResult | OwnModelResult:
    """Make the archive that the archiver's flags ask for; progress goes to `console`.

    Raises `PackagingError`, `ConfigError`, `LoweringError`, `LoadError`, `OSError`: there is no archive, nor anything
    left over.
    """
    destination = model_archiver.check_destination(flags, quiet=True)
    files = model_archiver.given_files(flags)
    config = load_config(Path(_checked_config_file(flags)))
    engines, rejected = candidate_engines(config)
    with private_directory() as private, temporary_files_in(private), versions.enable_emulation():
        staged, work = private / "staged", private / "work"
        staged.mkdir()
        work.mkdir()
        tree = model_archiver.stage(flags, staged)
        layout.check_collisions(tree, files.values())
        with importable(tree):
            result = _Packaging(flags, config, tree, work, console, engines).run()
        publish(flags, tree, manifest)
    written = replace(result, archive=destination, size=disk_size(destination))
    if isinstance(written, OwnModelResult):
        return written
    return replace(written, rejected=(*rejected, *written.rejected))


def _checked_config_file(flags: model_archiver.Flags) -> str:
    """Check the flags that this handler requires; returns the configuration's path."""
    if flags.runtime not in ("python", "python3"):
        raise PackagingError(f"--runtime {flags.runtime}: the handler neuron_lstm is Python; leave --runtime out")
    if flags.config_file is None:
        raise PackagingError(
            "--config-file is missing: the handler neuron_lstm needs a model-config.yaml with the model's inputs and "
            "buckets. `neuron-lstm init --model-file model.py --longest N` writes one to start from"
        )
    if flags.model_file is None and not is_torchscript(Path(flags.serialized_file or "")):
        raise PackagingError(
            "--model-file is missing: give the Python file that defines the model's class, whose weights come from "
            "--serialized-file as a state dict; or a function of tensors. Only a TorchScript program, which "
            "torch.jit.save has written as the --serialized-file, needs no such file"
        )
    extra_files = (flags.extra_files or "").split(",")
    for name in filter(None, extra_files):
        if not Path(name).exists() and not glob.has_magic(name):
            blanks = ": write the commas without blanks" if name != name.strip() else ""
            raise PackagingError(f"--extra-files: there is no file or folder {name.strip()}{blanks}")
    for file in map(Path, [flags.model_file or "", *extra_files]):
        if file.suffix == ".py" and file.stem in {*sys.stdlib_module_names, *_LIBRARIES}:
            raise PackagingError(f"{file.name} has the name of a library, which servers import: rename it")
    return flags.config_file


@dataclass(frozen=True)
class _Packaging:
    """The packaging of one model, whose files are in the tree."""

    flags: model_archiver.Flags
    config: ServingConfig
    tree: Path
    work: Path
    console: Console
    engines: Sequence[Backend]

    def run(self) -> PackagingResult | OwnModelResult:
        """Lower the model if that is possible and asked for; else let its own code answer."""
        if self.flags.model_file is None:
            return self._scripted(self.tree / str(self._weights))
        refusal: LoweringError | PackagingError | None = None
        if self.config.lowering != "off":
            try:
                return self._lowered()
            except (LoweringError, AllDiffer, NotRepeatable) as error:
                if not _may_answer_itself(error, self.config):
                    raise
                refusal = error
        (self.tree / layout.CONSTANTS).unlink(missing_ok=True)
        notes = self._uninstalled()
        model = self._load(notes)
        return package_own_model(self._build_input(), model, self._model_file, refusal, tuple(notes))

    def _scripted(self, file: Path) -> OwnModelResult:
        refusal = LoweringError(
            f"{file.name} is a TorchScript program, whose code cannot be traced: give the class as --model-file, and "
            "its state dict as --serialized-file, to lower it"
        )
        if not _may_answer_itself(refusal, self.config):
            raise refusal
        check_codec(self.config.codec, self.tree)
        try:
            model = load_script(file)
        except RuntimeError as error:
            *_, cause = str(error).strip().splitlines()
            raise PackagingError(f"--serialized-file {file.name} cannot be loaded: {cause}") from error
        check_finite(model, file.name)
        return package_own_model(BuildInput(self.tree, None, self.config, self._threads), model, file, refusal, ())

    def _lowered(self) -> PackagingResult:
        """Lower, compile, verify and measure; leave the tree with the selected engine."""
        directory = Path(str(self.flags.config_file)).resolve().parent
        config, tree, work, engines = self.config, self.tree, self.work, self.engines
        with compile_processes(work / "compilers") as processes:
            if len(engines) > 1 or not engines[0].polymorphic:
                processes.prepare()
            notes = self._uninstalled()
            model = self._load(notes)
            program = lower(model, config)
            if config.buckets.kernel is not None:
                check_bucket_selector(config.buckets.kernel, config.grid.lengths, tree)
                reason = f"{config.buckets.kernel} selects a bucket for each whole sequence"
                program = replace(program, chunked=None, chunking_reason=reason, any_shape=False)
            if config.streaming is not None:
                check_streamable(program)
            layout.check_labels(tree, program.outputs, config.codec)
            build = self._build_input()
            shadowed = None if config.shadow is None else prepare_shadow(build, config.shadow, model, self._model_file)
            try:
                short = prepare_short(build, program, model, self._model_file)
            except PackagingError as error:
                notes.append(f"requests of fewer than {program.shortest} timesteps are refused: {error}")
                short = None
            constants = {} if shadowed is None and short is None else non_persistent_buffers(model)
            write_constants(tree, {**constants, **program.constants})
            build = replace(build, shadow=None if shadowed is None else shadowed.shadow, short=short)
            compiler = CandidateCompiler(config, program, directory, work, self.console, processes)
            trials = prepare_trials(build, compiler, model)
            results = trials.run([compiler.candidate(engine) for engine in engines])
        name = preferred({result.backend: result.total_ms for result in results})
        selected = next(result for result in results if result.backend == name)
        install_engine(build, selected.candidate.engine, work)
        write_manifest(selected.manifest, tree)
        loaded = load_archive(tree, self._threads)  # once more, as a host will
        if shadowed is not None:
            notes += compare_once(loaded, tree, shadowed)
        return PackagingResult(
            archive=tree,
            size=0,
            precision=config.precision,
            selected=selected,
            others=tuple(result for result in results if result is not selected),
            rejected=trials.rejected,
            cpu_operators=cpu_operators(selected.manifest, ArchiveReader(tree)),
            notes=(*notes, *input_notes(program, config)),
        )

    def _uninstalled(self) -> list[str]:
        if self.flags.requirements_file is None or self.config.frontend.useVenv:
            return []
        asked = "write useVenv: true, and start TorchServe with install_py_dep_per_model=true, or install it there"
        return [f"requirements.txt is not installed on hosts: {asked}"]

    def _load(self, notes: list[str]) -> torch.nn.Module:
        """Load the user's code and weights from the tree; only the weights of a checkpoint stay in it."""
        check_codec(self.config.codec, self.tree)
        serialized_file = None if self._weights is None else self.tree / self._weights
        model = build_model(self._model_file, self.config.model, notes.append)
        found = load_state_dict(model, serialized_file, notes.append)
        if found is not None and serialized_file is not None and not found.is_whole_file:
            write_weights(found.weights, serialized_file)  # the weights alone, under the model's names
        return model

    def _build_input(self) -> BuildInput:
        return BuildInput(self.tree, self._weights, self.config, self._threads)

    @property
    def _threads(self) -> int:
        return self.config.threads or threads_per_worker(available_cores(), self.config.frontend.maxWorkers)

    @property
    def _model_file(self) -> Path:
        return self.tree / Path(str(self.flags.model_file)).name

    @property
    def _weights(self) -> str | None:
        """The serialized file's name in the tree."""
        return None if self.flags.serialized_file is None else Path(self.flags.serialized_file).name


def _may_answer_itself(refusal: LoweringError | PackagingError, config: ServingConfig) -> bool:
    """Whether the model's own code may answer in place of the programs that were refused.

    Sessions need programs. Programs of the engine that the user names, or within a tolerance that is stricter than the
    default, may differ by rounding alone.
    """
    if config.lowering == "required" or config.streaming is not None:
        return False
    default = Tolerance()
    strict = config.tolerance.atol < default.atol or config.tolerance.rtol < default.rtol
    return isinstance(refusal, LoweringError) or (config.engine == AUTO and not strict)


def input_notes(program: LoweredModel, config: ServingConfig) -> Iterator[str]:
    """Yield what may be a mistake: an input on whose values no output depends, or that is searched for NaN in vain."""
    yield from (
        f"the model looks for NaN in the input {name}, but requests with NaN are refused: write `missing: nan` there"
        for name in inputs_searched_for_nan(program)
    )
    yield from (
        f"no output depends on the values of the input {name}, which every request must still send: leave it out of "
        f"`inputs`, or check that {config.model.method or 'forward'}() uses that argument"
        for name in unused_inputs(program)
    )


def check_codec(codec: str | None, directory: Path) -> None:
    """Refuse a codec `module:Class` that is not in the archive. Its module must be `importable`.

    Raises `PackagingError`: no such file among the extra files, it fails to import, or defines no such class.
    """
    if codec is None:
        return
    name, _, class_name = codec.partition(":")
    file = _extra_file("codec", codec, directory)
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise PackagingError(
            f"neuron_lstm.codec: {file.name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(getattr(module, class_name, None), type):
        raise PackagingError(f"neuron_lstm.codec: {file.name} defines no class {class_name}")


def check_bucket_selector(reference: str, lengths: tuple[int, ...], directory: Path) -> None:
    """Refuse a bucket selector that is not in the archive or does not work. Files must be `importable`.

    Raises `PackagingError`: it is not among the extra files, or fails for some lengths, which are named.
    """
    _extra_file("buckets.kernel", reference, directory)
    with refusing(RuntimeError, "neuron_lstm.buckets."):
        load_bucket_selector(reference, lengths, directory)


def _extra_file(key: str, reference: str, directory: Path) -> Path:
    file = directory.joinpath(*reference.partition(":")[0].split(".")).with_suffix(".py")
    if not file.is_file():
        named = f"neuron_lstm.{key}: {reference}"
        raise PackagingError(f"{named}: there is no {file.name} in the archive; give it with --extra-files")
    return file

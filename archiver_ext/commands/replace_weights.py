"""`neuron-lstm replace-weights`: new weights in an archive, verified as at packaging."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import PackagingError, refusing
from ..report_parts import make_table, print_lines
from . import Commands, add_archive, add_archive_output, check_output, show, tell_unsigned

if TYPE_CHECKING:
    from rich.console import Console

    from ...bucketing.shapes import Bucket
    from ...config.manifest import Manifest
    from ...inference.reader import ArchiveReader
    from ..checkpoint import FoundWeights

_REBUILD = "package the model again, with the new file as --serialized-file"


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "replace-weights",
        help="replace the weights in an archive, without compiling",
        description="Replace the weights in an archive: names, shapes and dtypes must be those of the old ones. "
        "Nothing is compiled; each program is verified against the model again. The measured costs are kept.",
    )
    add_archive(command)
    command.add_argument("weights", type=Path, help="the new weights: a .pt, .pth or .safetensors file")
    add_archive_output(command)
    command.add_argument("--version", metavar="V", help="the new archive's version; without it that of the old one")
    command.add_argument("--json", action="store_true", help="print the results of the verification as JSON")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from rich.console import Console

    output = options.output or options.archive
    if options.output is not None:
        check_output(output, options.weights, "the file of weights")
    replaced = replace_weights(options.archive, options.weights, output, Console(stderr=True), options.version)
    if replaced.unsigned:
        tell_unsigned(output)
    show(options, lambda: _as_json(replaced, output), lambda console: _print(replaced, output, console))


@dataclass(frozen=True)
class ReplaceResult:
    """The manifest after the weights were replaced, and the errors of verification before."""

    errors_before: dict[Bucket, float]
    after: Manifest
    note: str | None = None
    """The part of the file that was read, if that is not the whole file."""
    unsigned: bool = False
    """Whether the archive was signed before; the new one is not."""


def replace_weights(
    archive: Path, file: Path, destination: Path, console: Console, version: str | None = None
) -> ReplaceResult:
    """Write `archive` to `destination` with the weights of `file`, and a version; programs and costs stay.

    Progress goes to `console` if it takes more than two seconds.

    Raises `PackagingError`: the archive is not as it was packaged or has no weights; they differ in names, shapes or
    dtypes; the new ones do not agree with the model in eager mode; or the archive cannot be read or written. Nothing
    was written then.
    Raises `LoadError`: this host cannot run the archive.
    """
    from ...backends.safetensors_file import WeightsError
    from ...config.manifest import FILE_NAME, ManifestError, read_manifest
    from ...config.manifest_writer import write_manifest
    from ...inference.private_directory import private_directory
    from ...inference.reader import STOCK_MANIFEST, ArchiveReader
    from ..archive.workspace import temporary_files_in
    from ..archive.writer import rewrite_archive

    reader = ArchiveReader(archive)
    read = reader.file_list()
    with private_directory() as private, temporary_files_in(private), reader.checked() as found:
        # A folder is used where it is: a copy keeps it unchanged until everything is verified.
        tree = Path(shutil.copytree(found, private / "archive")) if archive.is_dir() else found
        with refusing((ManifestError, WeightsError)):
            before = read_manifest(tree)
            weights = _own_weights(before)
            given = _read_new_weights(tree / weights, file)
            _write_new_weights(given, file, tree / weights)
            write_manifest(_with_digest(before, tree / weights), tree)
            after = _verify(reader, tree, weights, file.name, console)
            write_manifest(after, tree)
        files = {weights: tree / weights, FILE_NAME: tree / FILE_NAME}
        if version is not None:
            entries = json.loads((tree / STOCK_MANIFEST).read_text("utf-8"))
            entries["model"]["modelVersion"] = version
            (tree / STOCK_MANIFEST).write_text(json.dumps(entries, indent=2), "utf-8")
            files[STOCK_MANIFEST] = tree / STOCK_MANIFEST
        unsigned = rewrite_archive(archive, files, destination, read)
    errors = {check.bucket: check.max_error for check in before.checks}
    return ReplaceResult(errors, after, None if given.is_whole_file else given.describe(file), unsigned)


def _own_weights(manifest: Manifest) -> str:
    from ...backends.registry import get_backend

    if manifest.model is not None:
        raise PackagingError(
            f"{manifest.model.name} answers by its own code, which is compared while it is packaged: {_REBUILD}"
        )
    if manifest.weights is None:
        raise PackagingError("the archive has no weights: its model was packaged without --serialized-file")
    if get_backend(manifest.backend).inlines_weights:
        raise PackagingError(
            f"{manifest.backend} compiles the weights into its programs, so new weights need new programs: {_REBUILD}"
        )
    return manifest.weights


def _read_new_weights(old: Path, new: Path) -> FoundWeights:
    from ...backends.weights import read_weights, refit_mismatches
    from ..checkpoint import find_weights, listed

    known = read_weights(old)
    given = find_weights(new, known)
    if found := refit_mismatches(known, given.weights):
        raise PackagingError(
            f"{new.name}{given.key} cannot replace {old.name} in the archive, because its programs were compiled for "
            f"other weights. Save the same model's state dict, in the same precision; for another model, {_REBUILD}:\n"
            f"{listed(found)}"
        )
    return given


def _write_new_weights(given: FoundWeights, file: Path, target: Path) -> None:
    """Write the weights under the old file's name: as a copy of the new file, unless it has another form."""
    from ..checkpoint import write_weights

    same_format = (file.suffix.lower() == ".safetensors") == (target.suffix.lower() == ".safetensors")
    if not (same_format and given.is_whole_file):
        write_weights(given.weights, target)
        return
    beside = target.with_name(f"new-{target.name}")
    shutil.copyfile(file, beside)
    os.replace(beside, target)  # noqa: PTH105 - the old file may be mapped: it must not change


def _with_digest(manifest: Manifest, file: Path) -> Manifest:
    """Return the manifest for the new file of weights, without results of verification."""
    from ...config.manifest import sha256_of
    from ...lowering.chunks.streaming import with_weight_digests

    streaming = manifest.streaming
    if streaming is not None:
        streaming = replace(streaming, state=with_weight_digests(streaming.state, [sha256_of(file)]))
    return replace(manifest, streaming=streaming, checks=())


def _verify(reader: ArchiveReader, tree: Path, weights: str, source: str, console: Console) -> Manifest:
    """Verify with the same requests and tolerance as packaging; returns the manifest with the results.

    `source` is the name of the file that the user gave.
    """
    from ...backends import versions
    from ...backends.registry import get_backend
    from ...config.load import load_block
    from ...handlers.runtime.loader import load_archive
    from ..checkpoint import load_state_dict
    from ..evaluation.input_ranges import with_value_ranges
    from ..evaluation.manifest_builder import with_errors
    from ..evaluation.reference import make_reference
    from ..evaluation.verification_cases import draw_cases
    from ..evaluation.verify_programs import verify_programs
    from ..model_class import importable
    from ..progress import show_progress
    from ..user_model import build_model

    config = load_block(tree / reader.file_name("configFile"))
    with importable(tree), versions.enable_emulation():
        model = build_model(tree / reader.file_name("modelFile"), config.model)
        load_state_dict(model, tree / weights, source=source)
        loaded = with_value_ranges(load_archive(tree), config.input_specs)
        facts = loaded.manifest
        if (emulation := get_backend(facts.backend).simulation()) is not None:
            print_lines(console, f"{facts.backend} was {emulation}")
        with show_progress("reference", console, every_s=2.0) as report:
            reference = make_reference(model, config, facts.outputs)
            cases = draw_cases(facts, facts.grid, reference, report, longest=facts.longest)
        with show_progress("verify", console, every_s=2.0) as report:
            verified = verify_programs(loaded, cases, report)
    return with_errors(facts, verified)


def _as_json(replaced: ReplaceResult, output: Path) -> dict[str, Any]:
    after, known = replaced.after, replaced.errors_before
    return {
        "archive": str(output),
        "weights": after.weights,
        **({} if replaced.note is None else {"note": replaced.note}),
        "state": None if after.streaming is None else after.streaming.state,
        "tolerance": after.tolerance._asdict(),
        "checks": [
            {**check.bucket._asdict(), "max_error": check.max_error, "before": known.get(check.bucket)}
            for check in after.checks
        ],
    }


def _print(replaced: ReplaceResult, output: Path, console: Console) -> None:
    table = make_table("bucket", numbers=("max error before", "max error now"))
    for check in replaced.after.checks:
        before = replaced.errors_before.get(check.bucket)
        shape = f"{check.bucket.batch} x {check.bucket.length}"
        table.add_row(shape, "" if before is None else f"{before:.1e}", f"{check.max_error:.1e}")
    console.print(table)
    print_lines(console, *filter(None, [replaced.note]), f"{output} serves the new weights; nothing was compiled")
    if replaced.after.streaming is not None:
        print_lines(console, "sessions opened with the old weights are not resumed; they start again")

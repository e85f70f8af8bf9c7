"""Other weights for an archive's programs: checked against the old ones, and verified as at packaging."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from ...backends import simulation
from ...backends.interface import Inlining, Simulating
from ...backends.registry import get_backend
from ...backends.weights import WeightsError, read_weights, refit_mismatches
from ...config.load import load_block
from ...config.manifest import (
    FILE_NAME,
    Manifest,
    ManifestError,
    MeasuredError,
    digest_files,
    read_manifest,
    verify_files,
    write_manifest,
)
from ...handlers.runtime.loader import load_archive
from ...lowering.streaming import with_weight_digests
from ..archive.layout import STOCK_MANIFEST
from ..archive.reader import ArchiveReader
from ..archive.workspace import private_directory, temporary_files_in
from ..archive.writer import rewrite_archive
from ..build.evaluate import verify_archive
from ..build.reference import make_reference
from ..build.verify import draw_cases
from ..errors import PackagingError
from ..progress import show_progress
from ..user_model import importable, load_model

_REBUILD = "package the model again, with the new file as --serialized-file"


@dataclass(frozen=True)
class ReplaceResult:
    """What became of an archive."""

    before: Manifest
    after: Manifest


def replace_weights(archive: Path, file: Path, destination: Path, console: Console) -> ReplaceResult:
    """Write `archive` to `destination` with the weights of `file`. Programs and their measured costs stay as they are.

    Progress goes to `console` if it takes more than two seconds.

    Raises:
        PackagingError: the archive has no weights of its own, or others in names, shapes or dtypes; the new ones do not
            agree with the model in eager mode; or the archive cannot be read or written. Nothing was written then.
        CannotLoad: this host cannot run the archive.
    """
    with private_directory() as private, temporary_files_in(private), ArchiveReader(archive).unpacked() as found:
        # A folder is unpacked already, and stays as it is until all is well.
        tree = Path(shutil.copytree(found, private / "archive")) if archive.is_dir() else found
        try:
            before = read_manifest(tree)
            verify_files(tree, before)
            weights = _own_weights(before)
            _put(_checked(tree / weights, file), file, tree / weights)
            write_manifest(_with_digest(before, tree, weights), tree)
            after = _verified(tree, weights, console)
            write_manifest(after, tree)
        except (ManifestError, WeightsError) as error:
            raise PackagingError(str(error)) from error
        rewrite_archive(archive, {weights: tree / weights, FILE_NAME: tree / FILE_NAME}, destination)
    return ReplaceResult(before, after)


def _own_weights(manifest: Manifest) -> str:
    """The weights' file in the archive.

    Raises:
        PackagingError: programs have weights inside, or there are none at all.
    """
    if manifest.weights is None:
        raise PackagingError("the archive has no weights: its model was packaged without --serialized-file")
    engine = get_backend(manifest.backend)
    if isinstance(engine, Inlining) and engine.inlines_weights:
        raise PackagingError(
            f"{manifest.backend} compiles the weights into its programs, so that others need other programs: {_REBUILD}"
        )
    return manifest.weights


def _checked(old: Path, new: Path) -> Mapping[str, torch.Tensor]:
    """The new weights.

    Raises:
        PackagingError: their names, shapes or dtypes are not those of the old ones; each difference is named.
    """
    given = read_weights(new)
    found = refit_mismatches(read_weights(old), given)
    if found:
        lines = "\n  ".join(found)
        raise PackagingError(
            f"{new.name} cannot take the place of {old.name} of the archive, for whose weights its programs were "
            f"compiled. Save the same model's state dict, in the same precision; for another model, {_REBUILD}:\n"
            f"  {lines}"
        )
    return given


def _put(weights: Mapping[str, torch.Tensor], file: Path, target: Path) -> None:
    """Write the weights under the old file's name: as their own file, unless that is of another format."""
    beside = target.with_name(f"new-{target.name}")
    if (file.suffix.lower() == ".safetensors") == (target.suffix.lower() == ".safetensors"):
        shutil.copyfile(file, beside)
    elif target.suffix.lower() == ".safetensors":
        from safetensors.torch import save_file

        save_file(dict(weights), beside)
    else:
        torch.save(dict(weights), beside)
    os.replace(beside, target)  # noqa: PTH105 - the old file may be mapped: it must not change


def _with_digest(manifest: Manifest, tree: Path, weights: str) -> Manifest:
    """The manifest for the new file, of which nothing is verified yet."""
    digest = digest_files(tree)[weights]
    streaming = manifest.streaming
    if streaming is not None:
        streaming = replace(streaming, state=with_weight_digests(streaming.state, [digest]))
    return replace(manifest, files={**manifest.files, weights: digest}, streaming=streaming, checks=())


def _verified(tree: Path, weights: str, console: Console) -> Manifest:
    """The manifest with what verification found, as packaging does it: the same requests, the same tolerance.

    Raises:
        Missed: an answer differs from eager by more than the tolerance.
    """
    names = json.loads((tree / STOCK_MANIFEST).read_text(encoding="utf-8"))["model"]
    config = load_block(tree / names["configFile"])
    with importable(tree), simulation.enable_emulation():
        model = load_model(tree / names["modelFile"], tree / weights, config.model.args)
        variants = load_archive(tree)
        facts = variants.manifest
        engine = get_backend(facts.backend)
        if isinstance(engine, Simulating) and (emulation := engine.simulation()) is not None:
            console.print(f"{engine.name} was {emulation}", markup=False, highlight=False, soft_wrap=True)
        with show_progress("eager", console, every_s=2.0) as report:
            reference = make_reference(model, config, facts.outputs)
            cases = draw_cases(facts, facts.grid, reference, report, longest=facts.longest)
        with show_progress("verify", console, every_s=2.0) as report:
            checked = verify_archive(variants, cases, report)
    return replace(facts, checks=tuple(MeasuredError(bucket, found.max_error) for bucket, found in checked.items()))

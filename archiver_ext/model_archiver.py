"""Adapter of torch-model-archiver; the only file that imports it.

Every flag keeps its meaning because the archiver's own code reads it. Only the working directory differs: the archiver
stages in the system's temporary directory under the model's name, deleting what is there; here it is a private one.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

from ..config.file_errors import describe_file_error
from .errors import PackagingError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ResourceWarning)  # it leaves a file open while it is imported
    from model_archiver.arg_parser import ArgParser
    from model_archiver.model_archiver_error import ModelArchiverError
    from model_archiver.model_packaging_utils import ModelExportUtils


class Flags(Protocol):
    """The archiver's command line, as its parser returns it."""

    model_name: str
    handler: str
    version: str
    serialized_file: str | None
    model_file: str | None
    extra_files: str | None
    runtime: str
    export_path: str
    archive_format: str
    force: bool
    requirements_file: str | None
    config_file: str | None


class CommandLineError(Exception):
    """A command line that the archiver's parser refuses; the message is the parser's."""


def parse(arguments: Sequence[str]) -> Flags:
    """Read the archiver's command line with the archiver's parser.

    Raises `CommandLineError`: an option is missing, unknown or has a wrong value.
    Raises `SystemExit`: after the help.
    """
    written = io.StringIO()
    try:
        with _replace_attribute(sys, "argv", ["torch-model-archiver", *arguments]), contextlib.redirect_stderr(written):
            return cast(Flags, ArgParser.export_model_args_parser())
    except SystemExit as ended:
        if not ended.code:
            raise
        *_, message = written.getvalue().strip().split("error: ", 1)
        raise CommandLineError(message) from ended


def manifest_json(flags: Flags) -> str:
    """Return the text of MAR-INF/MANIFEST.json."""
    return str(ModelExportUtils.generate_manifest_json(flags))


def given_files(flags: Flags) -> dict[str, str]:
    """Return the files by their options. Raises `PackagingError`: one is not there."""
    files = {
        "--config-file": flags.config_file,
        "--model-file": flags.model_file,
        "--serialized-file": flags.serialized_file,
        "--requirements-file": flags.requirements_file,
    }
    for option, file in files.items():
        if file is not None and not Path(file).is_file():
            raise PackagingError(f"{option}: there is no file {file}")
    return {option: file for option, file in files.items() if file is not None}


def check_destination(flags: Flags, *, quiet: bool = False) -> Path:
    """Return the path of the archive, after checking that it may be written there.

    The archiver warns before it overwrites; `quiet` suppresses that, if nothing is overwritten yet.

    Raises `PackagingError`: a bad model name, an export path that is no directory, an existing archive without --force.
    """
    with _refusals(), _replace_attribute(logging.getLogger(), "disabled", quiet):
        ModelExportUtils.validate_inputs(flags.model_name, flags.export_path)
        directory = ModelExportUtils.check_mar_already_exists(
            flags.model_name, flags.export_path, flags.force, flags.archive_format
        )
    return archive_path(Path(directory).absolute(), flags)


def archive_path(directory: Path, flags: Flags) -> Path:
    """Return the path of the archive in a directory: M.mar, M.tar.gz or M, by the archive format."""
    return Path(ModelExportUtils.get_archive_export_path(str(directory), flags.model_name, flags.archive_format))


def stage(flags: Flags, directory: Path) -> Path:
    """Copy the user's files as the archiver lays them out, but no handler, into `directory`/MODEL_NAME.

    The files that the archiver would later leave out (`__pycache__`, hidden folders) are deleted.

    Raises `PackagingError`: a file does not exist or cannot be copied.
    """
    with _refusals(), _replace_attribute(tempfile, "tempdir", str(directory)):
        tree = ModelExportUtils.copy_artifacts(
            flags.model_name,
            flags.runtime,
            model_file=flags.model_file,
            serialized_file=flags.serialized_file,
            handler=None,
            extra_files=flags.extra_files,
            **{"requirements-file": flags.requirements_file},
            config_file=flags.config_file,
        )
    for parent, directories, _ in os.walk(tree, onerror=_raise_error):
        kept = [name for name in directories if ModelExportUtils.directory_filter(name, {"__MACOSX", "__pycache__"})]
        for name in set(directories) - set(kept):
            shutil.rmtree(Path(parent, name))
        directories[:] = kept
    return Path(tree)


def write_archive(flags: Flags, tree: Path, manifest: str, directory: Path) -> Path:
    """Archive `tree` in `directory`, in the format asked for. Returns the path of the archive.

    Raises `PackagingError`: the archiver refuses.
    Raises `OSError`: a file cannot be read or written.
    """
    with _refusals(OSError):
        ModelExportUtils.archive(str(directory), flags.model_name, str(tree), manifest, flags.archive_format)
    return archive_path(directory, flags)


def _raise_error(error: OSError) -> None:
    # `os.walk` leaves out what it cannot read.
    raise error


@contextmanager
def _refusals(left: type[OSError] | tuple[()] = ()) -> Iterator[None]:
    """Turn the archiver's errors for the user into ours, except those of the type `left`."""
    try:
        yield
    except left:
        raise
    except OSError as error:
        raise PackagingError(describe_file_error(error)) from error
    except (ModelArchiverError, ValueError) as error:
        raise PackagingError(str(error)) from error


@contextmanager
def _replace_attribute(owner: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)

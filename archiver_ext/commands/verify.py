"""`neuron-lstm verify`: a check of signed archives that runs nothing of theirs."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import PackagingError
from . import Commands


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "verify",
        help="check the signatures and the files of archives",
        description="Check that every file of each archive is unchanged since a trusted key signed it, and that there "
        "is no other file. Nothing of an archive is run. The exit code is 0 if all of them pass.",
    )
    command.add_argument("archives", type=Path, nargs="+", help="a .mar or a folder each")
    command.add_argument(
        "--trusted-keys", type=Path, required=True, help="a file of ed25519 public keys in PEM, one after the other"
    )
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from rich.console import Console

    from ..archive.packed_files import check_packed_files

    if not options.trusted_keys.exists():
        raise PackagingError(f"--trusted-keys: there is no file {options.trusted_keys}")
    console, failed = Console(), []
    for archive in options.archives:
        try:
            files = check_packed_files(archive, options.trusted_keys)
        except PackagingError as error:  # noqa: PERF203 - each archive has a message
            failed.append(str(error))
        else:
            console.print(f"{archive}: {files} files, as signed", markup=False, highlight=False, soft_wrap=True)
    if failed:
        raise PackagingError("\n".join(failed))

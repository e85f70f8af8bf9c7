"""`neuron-lstm sign` and `verify`: an ed25519 signature over the list of an archive's files, and its check.

Both run nothing of an archive.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ...config.file_errors import describe_cause
from ..errors import PackagingError, refusing
from . import Commands, add_archive_output, check_output, print_line


def add_to(commands: Commands) -> None:
    """Add both commands to the parser."""
    _add_sign(commands)
    _add_verify(commands)


def _add_sign(commands: Commands) -> None:
    command = commands.add_parser(
        "sign",
        help="sign an archive",
        description="Sign the list of an archive's files (SHA256SUMS) with a private ed25519 key, made by "
        "`openssl genpkey -algorithm ed25519 -out signing.pem`. An earlier signature is replaced. "
        "`openssl pkey -in signing.pem -pubout` prints the public key for `neuron-lstm verify`.",
    )
    command.add_argument("archive", type=Path, help="a .mar or a folder")
    command.add_argument("--key", type=Path, required=True, help="the private key, a PEM file that only you can read")
    add_archive_output(command)
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    output = options.output or options.archive
    if options.output is not None:
        check_output(output, options.key, "the private key")
    sign(options.archive, options.key, output)
    print_line(f"{output} is signed")


def sign(archive: Path, key_file: Path, destination: Path) -> None:
    """Write `archive` to `destination` with a signature; both may be the same.

    Raises `PackagingError`: the key is not usable, or the archive is not as it was packaged or cannot be written.
    Nothing was written then.
    """
    from ...handlers.neuron_lstm import LIST
    from ...inference.private_directory import private_directory
    from ...inference.reader import ArchiveReader
    from ..archive.archived_files import check_packed_files
    from ..archive.file_list import list_text, parsed
    from ..archive.writer import write_files

    content = ArchiveReader(archive).file_list()
    check_packed_files(archive, None)
    _, signed, _ = parsed(content)
    signature = _signature(key_file, signed)
    with private_directory() as private:
        (private / LIST).write_bytes(list_text(signed, signature))
        write_files(archive, {LIST: private / LIST}, destination, content)


def _signature(key_file: Path, content: bytes) -> bytes:
    needed = "signing needs the package cryptography: pip install 'torchserve-neuron-lstm[sign]'"
    with refusing(ImportError, f"{needed} (", ")"):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    try:
        if key_file.stat().st_mode & 0o077:
            raise PackagingError(f"the private key {key_file} can be read by other users: chmod 600 {key_file}")
        key = load_pem_private_key(key_file.read_bytes(), password=None)
    except OSError as error:
        raise PackagingError(f"the private key {key_file} cannot be read: {describe_cause(error)}") from error
    except (TypeError, ValueError) as error:  # TypeError: it is encrypted
        raise PackagingError(f"the private key {key_file} cannot be read: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise PackagingError(f"{key_file} is not an ed25519 key: openssl genpkey -algorithm ed25519 -out {key_file}")
    return key.sign(content)


def _add_verify(commands: Commands) -> None:
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
    command.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> None:
    from ..archive.archived_files import check_packed_files

    if not options.trusted_keys.exists():
        raise PackagingError(f"--trusted-keys: there is no file {options.trusted_keys}")
    failed = []
    for archive in options.archives:
        try:
            files = check_packed_files(archive, options.trusted_keys)
        except PackagingError as error:  # noqa: PERF203 - each archive has a message
            failed.append(str(error))
        else:
            print_line(f"{archive}: {files} files, as signed")
    if failed:
        raise PackagingError("\n".join(failed))

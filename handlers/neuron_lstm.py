"""Entry file, which TorchServe loads from an archive: it checks all files before it runs another.

Apart from what Python and TorchServe import earlier, this file is all that runs unchecked. The list `SHA256SUMS` has
the sha256 of every file of the archive. A file that is changed, missing, not in the list or a link ends the load. Then
modules of the archive are imported from the bytes that were checked, and from nothing else (`CheckedModules`).

TorchServe uses the one class of this file, and mistakes any ImportError of this file for a missing handler. So imports
that can fail are made in `initialize`, which reports their true cause.
"""

from __future__ import annotations

import os
import sys

_FOLDER = os.path.realpath(os.path.dirname(__file__))
_RUNNING = sys._getframe().f_code  # noqa: SLF001 - the only way to the code of this module as it runs
# A file added to the archive must not be imported in place of a module of Python or of the host.
sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != _FOLDER]

import base64  # noqa: E402 - not before sys.path is safe
import hashlib  # noqa: E402 - the same
import importlib  # noqa: E402 - the same
import importlib.util  # noqa: E402 - the same
import re  # noqa: E402 - the same
import stat  # noqa: E402 - the same
from collections.abc import Iterator  # noqa: E402 - the same
from typing import Any  # noqa: E402 - the same

LIST = "SHA256SUMS"
"""The list, in the form that `sha256sum -c SHA256SUMS` reads."""
TITLE = "# torchserve-neuron-lstm archive 1"
TRUSTED_KEYS = "NEURON_LSTM_TRUSTED_KEYS"
"""The environment variable that names a file of public keys; one of them must have signed."""
_ENTRY_FILE = "neuron_lstm.py"
_OWN_CACHE = re.compile(r"__pycache__/neuron_lstm\.[^/]+")
_MODULES = "torchserve_neuron_lstm/handlers/runtime/checked_modules.py"
_NAMED = 5  # files of one message


class NeuronLstm:
    """TorchServe handler: `initialize` is called once per worker, then `handle` for every batch."""

    def __init__(self) -> None:
        """Check the archive.

        Not in `initialize`: if its name were changed by one byte, TorchServe would load the model without it.

        Raises `RuntimeError`: it is not as it was packaged or signed; the message names the files. Or Python is too
        old.
        """
        if sys.version_info < (3, 9):  # noqa: UP036 - a host has a Python of its own
            raise RuntimeError(f"this archive needs Python 3.9 or later; here is {sys.version.split()[0]}")
        self._digests, self._sources = check_folder(_FOLDER, os.environ.get(TRUSTED_KEYS))
        _check_running(self._sources[_ENTRY_FILE])

    def initialize(self, context: Any) -> None:
        """Load the archive. Raises `RuntimeError`: it cannot be served here; the message says why."""
        directory = context.system_properties["model_dir"]
        if os.path.realpath(directory) != _FOLDER:
            raise RuntimeError(f"the archive is in {directory}, but Python imports its handler from {_FOLDER}")
        modules: dict[str, Any] = {"__name__": "neuron_lstm_modules"}
        source = compile(self._sources[_MODULES], os.path.join(_FOLDER, _MODULES), "exec")
        exec(source, modules)  # noqa: S102 - it is checked
        sys.meta_path.insert(0, modules["CheckedModules"](_FOLDER, self._digests, self._sources))
        try:
            self._torchserve = importlib.import_module("torchserve_neuron_lstm.handlers.torchserve")
        except ImportError as error:
            raise RuntimeError(f"the archive's code cannot be loaded on this host: {error}") from error
        self._service = self._torchserve.load(context)
        self.initialized = True

    def handle(self, data: list[Any], context: Any) -> list[bytes]:
        """Return one response body for each row of the batch."""
        bodies: list[bytes] = self._torchserve.handle(self._service, data, context)
        return bodies


def check_folder(folder: str, trusted_keys: str | None) -> tuple[dict[str, str], dict[str, bytes]]:
    """Compare every file of an unpacked archive with its list; each is read once.

    `trusted_keys` names a file of public keys, of which one must have signed the list; None: no signature is needed.
    Returns the list, and the contents of the Python files, by relative path.

    Raises `RuntimeError`: the archive is not as it was packaged or signed. The message names the files.
    """
    digests, signed, signature = parse_list(_read(folder, LIST)[1])
    if trusted_keys is not None:
        check_signature(signed, signature, trusted_keys)
    try:
        found = set(_walk(folder)) - {LIST}
    except OSError as error:
        raise RuntimeError(
            f"the archive cannot be read: {error}; look for the cause on the disk of {folder}"
        ) from error
    refuse(misplaced(found, digests))
    changed, sources = [], {}
    for name, digest in digests.items():
        read, content = _read(folder, name)
        if read != digest:
            changed.append(f"{name} was changed")
        if name.endswith(".py"):
            sources[name] = content
    refuse(changed)
    return digests, sources


def parse_list(content: bytes) -> tuple[dict[str, str], bytes, bytes | None]:
    """Parse the list of an archive, of which the first line is the sha256 of all lines below it.

    Returns the sha256 of each file by its path, the bytes that a signature is over, and the signature if there is one.

    Raises `RuntimeError`: it was changed, or is no such list.
    """
    first, _, body = content.partition(b"\n")
    if first != b"# sha256 " + hashlib.sha256(body).hexdigest().encode():
        refuse([f"{LIST} was changed"])
    signature, signed = None, body
    try:
        if body.startswith(b"# ed25519 "):
            line, _, signed = body.partition(b"\n")
            signature = base64.b64decode(line[len(b"# ed25519 ") :], validate=True)
        title, *lines, end = signed.decode("utf-8").split("\n")
        pairs = [(line[66:], line[:64]) for line in lines if re.fullmatch(r"[0-9a-f]{64}  .{1,1024}", line)]
    except ValueError as error:
        raise RuntimeError(f"{LIST} cannot be read: {error}") from error
    if (
        (title, end) != (TITLE, "")
        or len(dict(pairs)) != len(lines)
        or not {_ENTRY_FILE, _MODULES} <= dict(pairs).keys()
    ):
        raise RuntimeError(f"{LIST} is not a list of files of this version's format")
    return dict(pairs), signed, signature


def refuse(complaints: list[str]) -> None:
    """Refuse the archive if there are complaints. Raises `RuntimeError`: names the first of them."""
    if complaints:
        more = f" and {len(complaints) - _NAMED} more" if len(complaints) > _NAMED else ""
        what = ", ".join(text if text.isprintable() else ascii(text) for text in complaints[:_NAMED])
        installed = any(".dist-info/" in text for text in complaints)  # by TorchServe, from requirements.txt
        venv = "; packages that TorchServe installs need useVenv: true in the YAML" if installed else ""
        raise RuntimeError(
            f"the archive is not as it was packaged: {what}{more}. Put the archive's own files back, and keep no other "
            f"file in its folder; or package the model again{venv}"
        )


def check_signature(signed: bytes, signature: bytes | None, trusted_keys: str) -> None:
    """Check that one of the public keys (PEM, ed25519) in the file `trusted_keys` signed these bytes.

    Raises `RuntimeError`: it is not, or this cannot be checked here.
    """
    if signature is None:
        raise RuntimeError(f"the archive is not signed, and trusted keys are given ({trusted_keys}): neuron-lstm sign")
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as error:
        raise RuntimeError(f"signatures cannot be checked: install cryptography on this host ({error})") from error
    try:
        with open(trusted_keys, "rb") as file:
            parts = file.read().split(b"-----END PUBLIC KEY-----")
        keys = [load_pem_public_key(part.lstrip() + b"-----END PUBLIC KEY-----\n") for part in parts[:-1]]
    except (OSError, ValueError) as error:
        raise RuntimeError(f"the trusted keys {trusted_keys!r} cannot be read: {error}") from error
    usable = [key for key in keys if isinstance(key, Ed25519PublicKey)]
    if not keys or usable != keys:
        raise RuntimeError(f"the trusted keys {trusted_keys!r} must be one ed25519 public key or more, in PEM")
    for key in usable:
        try:
            key.verify(signature, signed)
        except InvalidSignature:
            continue
        return
    raise RuntimeError(f"the archive's signature is of none of the keys in {trusted_keys}")


def _walk(folder: str) -> Iterator[str]:
    """Yield the relative path of everything except the bytecode of this file. That of a folder ends in a slash."""
    pending = [""]
    while pending:
        parent = pending.pop()
        yield parent
        with os.scandir(os.path.join(folder, parent)) as entries:
            for entry in entries:
                name = f"{parent}{entry.name}"
                if not entry.is_dir(follow_symlinks=False):
                    yield from [] if _OWN_CACHE.fullmatch(name) else [name]
                elif entry.path != os.path.realpath(sys.prefix):  # with `useVenv`, the interpreter that runs this
                    pending.append(f"{name}/")


def misplaced(found: set[str], digests: dict[str, str]) -> list[str]:
    """List the paths that are in one of the two only. A folder, which ends in a slash, must hold a listed file."""
    folders = {"", *(name[: at + 1] for name in digests for at, sign in enumerate(name) if sign == "/")}
    # Python's caches may have been emptied.
    added = (name for name in found - digests.keys() if name.removesuffix("__pycache__/") not in folders)
    return [
        *(f"{name} is not in {LIST}" for name in sorted(added)),
        *(f"{name} is missing" for name in sorted(digests.keys() - found)),
    ]


def _read(folder: str, name: str) -> tuple[str, bytes]:
    """Read a file that is no link; returns its sha256 and, of a list or a Python file, its content.

    Raises `RuntimeError`: it cannot be read.
    """
    path, kept, digest = os.path.join(folder, name), [], hashlib.sha256()
    try:
        # A pipe must not block, and a link must not lead out of the folder.
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                refuse([f"{name} is not a regular file"])
            while block := file.read(1 << 20):
                digest.update(block)
                kept += [block] if name.endswith((".py", LIST)) else []
    except OSError as error:
        reason = "is a link" if os.path.islink(path) else f"cannot be read ({error.strerror})"
        refuse([f"{name} {reason}"])
    return digest.hexdigest(), b"".join(kept)


def _check_running(source: bytes) -> None:
    """Check that Python runs this file as it is listed, and no bytecode of another one.

    Raises `RuntimeError`: the code differs.
    """
    if compile(source, __file__, "exec", dont_inherit=True) != _RUNNING:
        cache = os.path.relpath(importlib.util.cache_from_source(__file__), os.path.dirname(__file__))
        refuse([f"{cache} is not the bytecode of {_ENTRY_FILE}"])

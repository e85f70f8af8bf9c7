"""The model's own codec: the user's class that turns a body into inputs, and outputs into an answer.

It is written as `codec: module:Class` in the YAML, its file given with `--extra-files`. The class is made once per
worker, without arguments, with the archive's folder as the working directory and first on `sys.path`.

    class Codec:
        def decode(self, body: bytes, content_type: str) -> Mapping[str, list | Tensor] | list[Mapping]
        def encode(self, outputs: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> object

`decode` gives the inputs by name, without batch dimension; or a list of such, for several sequences in one request.
`encode` is called for each sequence with its own outputs and inputs, and returns what JSON can say (tensors included),
or bytes of the class attribute `content_type`. A list of sequences is answered by a JSON array, in their order.
A ValueError tells the client what is wrong with the request (400, with its message); anything else is a 500.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from ..runtime.user_code import import_reference, working_directory


class UserCodec(Protocol):
    """What the user's class has."""

    def decode(self, body: bytes, content_type: str) -> Any:
        """The inputs of one sequence by name, or a list of such."""

    def encode(self, outputs: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> object:
        """The answer to one sequence."""


def load_user_codec(reference: str, directory: Path) -> UserCodec:
    """An instance of the class that `reference` ("module:Class") names, from a file in `directory`.

    Raises:
        RuntimeError: the module or the class is not there, or making it failed; with the cause.
    """
    with working_directory(directory):
        try:
            codec = import_reference(reference, directory)()
        except Exception as error:
            raise RuntimeError(f"codec {reference}: {type(error).__name__}: {error}") from error
    for method in ("decode", "encode"):
        if not callable(getattr(codec, method, None)):
            raise RuntimeError(f"codec {reference}: the class has no method {method!r}")  # noqa: TRY004
    return cast("UserCodec", codec)

"""A codec from a chunk of text to its surprise. The archive contains it as an extra file."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class ChunkCodec:
    """A codec for requests that are the next bytes of a text."""

    def decode(self, body: bytes, content_type: str) -> dict[str, list[int]]:
        """Convert a request's body to the model's input.

        Raises:
            ValueError: the body is wrong; the client gets this message with status 400.

        >>> ChunkCodec().decode(b"Hi", "text/plain")
        {'ids': [72, 105]}
        """
        if not body:
            raise ValueError("send the next bytes of the text: one or more")
        return {"ids": list(body)}

    def encode(self, outputs: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> dict[str, object]:
        """Convert the outputs to the answer: a number of bits for each byte of the chunk."""
        return {"bits": outputs["surprise"].tolist()}

"""A codec from a chunk of text to its surprise. The archive contains it as an extra file."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class ChunkCodec:
    """A codec for requests of the next bytes of a text, after the one byte before them.

    At the beginning of a text, that byte is a newline.
    """

    def decode(self, body: bytes, content_type: str) -> dict[str, list[int]]:
        r"""Convert a request's body to the model's inputs.

        Raises:
            ValueError: the body is wrong; the client gets this message with status 400.

        >>> ChunkCodec().decode(b"\nHi", "text/plain")
        {'before': [10, 72], 'ids': [72, 105]}
        """
        if len(body) < 2:
            raise ValueError("send the byte before the chunk, and then the chunk: two bytes or more")
        return {"before": list(body[:-1]), "ids": list(body[1:])}

    def encode(self, outputs: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> dict[str, object]:
        """Convert the outputs to the answer: a number of bits for each byte of the chunk."""
        return {"bits": outputs["surprise"].tolist()}

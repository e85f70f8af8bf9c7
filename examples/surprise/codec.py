"""Text in, surprise out: what a client of the model sends and gets. Travels in the archive as an extra file."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class SurpriseCodec:
    """A request is the text itself, the answer one number of bits for each of its bytes and their mean."""

    def decode(self, body: bytes, content_type: str) -> dict[str, list[int]]:
        """The model's inputs from a request's body.

        Raises:
            ValueError: the client's mistake; it gets this message with status 400.

        >>> SurpriseCodec().decode(b"Hi!", "text/plain")
        {'ids': [72, 105, 33]}
        """
        if content_type and not content_type.startswith("text/"):
            raise ValueError(f"send the text itself as text/plain, not {content_type}")
        if not body:
            raise ValueError("the text is empty: there is nothing to be surprised by")
        return {"ids": list(body)}

    def encode(self, outputs: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> dict[str, object]:
        """The answer from the model's outputs: `surprise` is float32[T], one value for each byte of the text."""
        surprise = outputs["surprise"]
        return {"mean_bits": float(surprise.mean()), "bits": surprise.tolist()}

"""A codec from text to surprise, for the model's clients. It is carried in the archive as an extra file."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class SurpriseCodec:
    """A codec for requests that are the text itself; an answer has the bits of each byte and their mean."""

    def decode(self, body: bytes, content_type: str) -> dict[str, list[int]]:
        """Convert a request's body to the model's inputs.

        Raises:
            ValueError: the body is wrong; the client gets this message with status 400.

        >>> SurpriseCodec().decode(b"Hi!", "text/plain")
        {'ids': [72, 105, 33]}
        """
        if content_type and not content_type.startswith("text/"):
            raise ValueError(f"send the text itself as text/plain, not {content_type}")
        if not body:
            raise ValueError("the text is empty: there is nothing to be surprised by")
        return {"ids": list(body)}

    def encode(self, outputs: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> dict[str, object]:
        """Convert the model's outputs to the answer: `surprise` is float32[T], one value for each byte."""
        surprise = outputs["surprise"]
        return {"mean_bits": float(surprise.mean()), "bits": surprise.tolist()}

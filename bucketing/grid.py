"""Former path of `Bucket`, which backends of other distributions import from here."""

from .shapes import Bucket

__all__ = ["Bucket"]

"""Lowering of the user's model to programs over padded tensors: `lower.py` has the steps in their order."""

from .errors import LoweringError
from .lower import lower

__all__ = ["LoweringError", "lower"]

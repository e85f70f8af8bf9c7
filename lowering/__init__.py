"""Lowering of the user's model to one function over padded tensors, equal to the PackedSequence model.

`export` traces the model with symbolic batch and time while `packed_sequence` replaces PackedSequence code by the
abstract masked operators. `outputs` reads the layout of the outputs off the graph. `padding_taint` proves that padding
cannot reach an output; if it cannot, `differential` searches for the line through which padding reaches one.
`carry_analysis` and `chunking` turn the model into programs over chunks of time.
"""

from .errors import LoweringError
from .lower import lower

__all__ = ["LoweringError", "lower"]

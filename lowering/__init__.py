"""From the user's model to one function over padded tensors that is exactly the PackedSequence model.

`intercept` swaps PackedSequence code for the abstract masked operators while `trace` exports the model with symbolic
batch and time; `answers` reads the layout of the outputs off the graph; `proof` shows that padding cannot reach an
answer, and where that cannot be shown, `differential` finds the line through which it does.
"""

from .errors import LoweringError
from .lower import lower

__all__ = ["LoweringError", "lower"]

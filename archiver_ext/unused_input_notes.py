"""Notes about declared inputs that the model does not use."""

from __future__ import annotations

from ..config.schema import ServingConfig
from ..lowering.program import LoweredModel, unused_inputs


def unused_input_notes(program: LoweredModel, config: ServingConfig) -> tuple[str, ...]:
    """Say of each input on whose values no output depends that it may be a mistake."""
    return tuple(
        f"no output depends on the values of the input {name}, which every request must still send: leave it out of "
        f"`inputs`, or check that {config.model.method or 'forward'}() uses that argument"
        for name in unused_inputs(program)
    )

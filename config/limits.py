"""`limits:` of the YAML: what one request may ask for."""

from __future__ import annotations

from .fields import PositiveFloat, PositiveInt, Size
from .request_limits import RequestLimits
from .strict import Strict

_DEFAULTS = RequestLimits()


class LimitsConfig(Strict):
    """Bounds of one request: a larger one is refused with 413 before any work is done for it."""

    sequences: PositiveInt = _DEFAULTS.sequences
    """The largest number of sequences."""
    timesteps: PositiveInt = _DEFAULTS.timesteps
    """The largest number of timesteps, of all sequences together."""
    body_bytes: Size = _DEFAULTS.body_bytes
    """The largest body in bytes; TorchServe has another limit, max_request_size."""
    milliseconds: PositiveFloat | None = None
    """The longest computation, as estimated by the measured costs; left out, a tenth of responseTimeout."""
    timeout_ms: PositiveFloat | None = None
    """The deadline of a request that names none, in milliseconds from its arrival at the worker on.

    What is not begun by then is refused with 504. Left out, it is responseTimeout.
    """

    @property
    def limits(self) -> RequestLimits:
        """The limits as serving reads them."""
        return RequestLimits(**self.model_dump())

"""Entry point that TorchServe loads from an archive: it only adds the archive's code to `sys.path`.

TorchServe uses the one class of this file, and mistakes any ImportError of this file for a missing handler. So imports
that can fail are made in `initialize`, which reports their true cause.
"""

import importlib
import sys
from pathlib import Path
from typing import Any


class NeuronLstm:
    """TorchServe handler: `initialize` is called once per worker, then `handle` for every batch."""

    def initialize(self, context: Any) -> None:
        """Load the archive.

        Raises:
            RuntimeError: it cannot be served here; the message says why.
        """
        folder = str(Path(__file__).resolve().parent)
        sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]
        try:
            self._torchserve = importlib.import_module("torchserve_neuron_lstm.handlers.torchserve")
        except ImportError as error:
            raise RuntimeError(f"the archive's code cannot be loaded on this host: {error}") from error
        self._service = self._torchserve.load(context)
        self.initialized = True

    def handle(self, data: list[Any], context: Any) -> list[bytes]:
        """Return one response body for each row of the batch."""
        bodies: list[bytes] = self._torchserve.handle(self._service, data, context)
        return bodies

"""Serve LSTM and GRU models over sequences of every length with TorchServe.

The package is made of the folders beside it; ARCHITECTURE.md says which line of code lives where. It imports
nothing here, because a copy of it travels inside every archive and is imported by every TorchServe worker.
"""

__version__ = "0.1.0"

"""Streaming sessions on one TorchServe, which ends with this folder."""

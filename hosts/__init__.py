"""Hosts of archives beside TorchServe: an adapter for each server. The interface is in `handlers/open_service.py`."""

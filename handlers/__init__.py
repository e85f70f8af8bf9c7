"""Serving time: from the bytes of a batch of requests to the bytes of their answers."""

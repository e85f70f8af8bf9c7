"""Streaming sessions between their pieces: what is kept of one, where, and what becomes of the next piece.

Nothing here knows of a model, a request or a server; the standard library is enough for all but the network store.
"""

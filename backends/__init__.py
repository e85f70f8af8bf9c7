"""Engines, one file or folder each: compilation while packaging, and loading while serving.

A heavy or optional package is imported inside functions. So an archive can contain the files of one engine, and a host
that has only that engine can import them.
"""

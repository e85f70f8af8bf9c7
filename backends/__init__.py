"""Engines, one file or folder each: compilation while packaging, and loading while serving.

A heavy or optional package is imported inside functions, so that the files of one engine can travel in an archive and
be imported on a host that has only that engine.
"""

"""The engines, one file each, both halves: compiling at packaging time and loading at serving time.

A heavy or optional engine is imported inside its functions, so that this folder can travel in an archive and be
imported on a host that has only the one engine its manifest names.
"""

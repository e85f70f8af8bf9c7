"""Compilation of programs in parallel, each in a process that may crash or hang without the others."""

"""File of an imported module, read without running the module's own code."""

from __future__ import annotations


def module_file(module: object) -> str | None:
    """Return the file of a module of `sys.modules`; None if it has none.

    A module that imports its contents on first use does so for `getattr`, and that may fail.
    """
    file = getattr(module, "__dict__", {}).get("__file__")
    return file if isinstance(file, str) else None

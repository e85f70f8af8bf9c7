"""The versions of the C and C++ libraries that compiled code asks its host for.

A shared library names the versions of the symbols that it imports, such as `GLIBC_2.14` or `GLIBCXX_3.4.22`, in its
table of strings (https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/symversion.html).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_VERSION = re.compile(rb"\0(GLIBC|GLIBCXX|CXXABI)_(\d+(?:\.\d+)+)(?=\0)")


def symbol_versions(libraries: Iterable[Path]) -> dict[str, str]:
    """Return the highest version of each library's symbols that some shared libraries import.

    >>> symbol_versions([])
    {}
    """
    found: dict[str, tuple[int, ...]] = {}
    for library in libraries:
        for kind, version in _VERSION.findall(library.read_bytes()):
            numbers = tuple(map(int, version.decode().split(".")))
            found[kind.decode()] = max(found.get(kind.decode(), ()), numbers)
    return {kind: ".".join(map(str, numbers)) for kind, numbers in sorted(found.items())}

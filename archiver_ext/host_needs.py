"""The hosts that an archive runs on, in words: their software, and their machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PYTHON = "3.9"
"""The oldest Python on which the serving code runs: that of TorchServe's image."""

_LIBRARIES = {"GLIBC": "glibc {} or later", "GLIBCXX": "libstdc++ with GLIBCXX_{}", "CXXABI": "CXXABI_{}"}


def software(requires: Sequence[Mapping[str, str]], host: Mapping[str, str]) -> str:
    """Describe the Python and the packages, for the manifest's `requires` and `host`.

    Code that one minor release of torch binds has that release in `host`.

    >>> torch = {"distribution": "torch", "module": "torch", "version": "2.4.0"}
    >>> software([torch], {"machine": "x86_64"})
    'Python 3.9 or later, torch 2.4.0 or later'
    >>> software([torch], {"torch": "2.4"})
    'Python 3.9 or later, torch 2.4.*'
    """
    needs = (
        f"{need['distribution']} {host[need['distribution']]}.*"
        if need["distribution"] in host
        else f"{need['distribution']} {need['version']} or later"
        for need in requires
    )
    return ", ".join([f"Python {PYTHON} or later", *needs])


def machine(host: Mapping[str, str], backend: str) -> str:
    """Describe the machine, its device and its system libraries, for the manifest's `host` and engine.

    >>> machine({"GLIBC": "2.16", "isa": "x86-64-v3", "machine": "x86_64", "system": "linux"}, "native")
    'linux on x86_64 (x86-64-v3 or later), glibc 2.16 or later'
    >>> machine({}, "eager"), machine({}, "cuda")
    ('any machine', 'any machine with an NVIDIA GPU')
    """
    from ..backends.registry import ENGINES  # it imports torch, for which `--help` does not wait

    device = ENGINES[backend].device if backend in ENGINES else None
    beside = f" with {device}" if device else ""
    if not host:
        return f"any machine{beside}"
    kind = f"{host.get('system', 'any system')} on {host.get('machine', 'any processor')}"
    kind += (f" ({host['isa']} or later)" if "isa" in host else "") + beside
    return ", ".join([kind, *(text.format(host[name]) for name, text in _LIBRARIES.items() if name in host)])

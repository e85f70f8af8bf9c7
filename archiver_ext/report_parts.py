"""Parts of reports that commands share: tables, how costs were measured, the hosts of an archive, CPU operators."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..config.diagnostics import printable
from .errors import refusing

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..config.manifest import CostMeasurement, Manifest, RequiredPackage
    from ..inference.reader import ArchiveReader


def cost_lines(backend: str, measurement: CostMeasurement | None, cpu_operators: Sequence[str]) -> Iterator[str]:
    """Yield the conditions of the measured costs: threads, spread, and operators that the CPU runs.

    >>> list(cost_lines("onnxruntime", None, ["aten::sort"]))
    ['operators on the CPU, not on onnxruntime: aten::sort']
    """
    if measurement is not None:
        threads = f"{measurement.threads} thread{'s' * (measurement.threads > 1)}"
        spread = f"{measurement.spread - 1:.0%}"
        yield f"costs were measured with {threads}; most calls took {spread} longer than the shortest or less"
    if cpu_operators:
        yield f"operators on the CPU, not on {backend}: {', '.join(map(one_line, cpu_operators))}"


def busy_line(
    measurement: CostMeasurement | None, others: Mapping[str, CostMeasurement | None] = MappingProxyType({})
) -> Iterator[str]:
    """Yield what to do if the costs, or those of the `others` that were compared, were measured while other work ran.

    >>> from torchserve_neuron_lstm.config.manifest import CostMeasurement
    >>> list(busy_line(CostMeasurement(2, 1.1), {"native": CostMeasurement(2, 9.5), "openvino": None}))
    ['native waited for cores while it was measured, and may be faster: package again on an idle machine']
    """
    busy = [engine for engine, one in others.items() if one is not None and one.was_busy]
    if measurement is not None and measurement.was_busy:
        yield "costs were measured on a busy machine: run neuron-lstm calibrate"
    elif busy:
        yield f"{busy[0]} waited for cores while it was measured, and may be faster: package again on an idle machine"


def one_line(text: str) -> str:
    r"""Replace line breaks, and all that a terminal would obey or hide, by their escapes.

    >>> print(one_line("tagger\nsigned"))
    tagger\nsigned
    """
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def print_lines(console: Console, *lines: str) -> None:
    """Print lines as they are, whatever the terminal's width; it obeys nothing in them."""
    for line in lines:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


def make_table(*texts: str, numbers: Iterable[str]) -> Table:
    """Make a table without rows, with these headings; numbers are aligned to the right."""
    from rich.table import Table  # `--help` does not wait for it

    table = Table(*texts, highlight=False)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


PYTHON = "3.9"
"""The oldest Python on which the serving code runs: that of TorchServe's image."""

_LIBRARIES = {"GLIBC": "glibc {} or later", "GLIBCXX": "libstdc++ with GLIBCXX_{}", "CXXABI": "CXXABI_{}"}


def software(requires: Iterable[RequiredPackage], host: Mapping[str, str]) -> str:
    """Describe the Python and the packages, for the manifest's `requires` and `host`.

    Code that one minor release of torch binds has that release in `host`.

    >>> from torchserve_neuron_lstm.config.manifest import RequiredPackage
    >>> torch = RequiredPackage("torch", "torch", "2.4.0")
    >>> software([torch], {"machine": "x86_64"}), software([torch], {"torch": "2.4"})
    ('Python 3.9 or later, torch 2.4.0 or later', 'Python 3.9 or later, torch 2.4.*')
    """
    needs = (
        f"{need.distribution} {host[need.distribution]}.*"
        if need.distribution in host
        else f"{need.distribution} {need.version} or later"
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


_SEGMENTS = "segments.json"
"""File of a program that is divided between an engine and the CPU."""


def cpu_operators(manifest: Manifest, reader: ArchiveReader) -> list[str]:
    """List the operators, each once, that the programs of an archive leave to the CPU.

    Raises `ArchiveError`: the list of a program's segments is damaged.
    """
    files = reader.files_of({f"{variant.directory}/{_SEGMENTS}" for variant in manifest.variants})
    return list(dict.fromkeys(name for file in sorted(files) for name in _on_cpu(file, files[file], reader)))


def _on_cpu(name: str, content: bytes, reader: ArchiveReader) -> list[str]:
    damaged = f"{reader.path} is damaged: {name} is not a list of segments"
    with refusing((ValueError, KeyError, TypeError, RecursionError), f"{damaged} (", ")"):
        segments = json.loads(content)["segments"]
        return [operator for segment in segments if segment["place"] == "cpu" for operator in segment["operators"]]

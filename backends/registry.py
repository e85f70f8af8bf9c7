"""From the name of an engine to the engine. Nothing is imported before it is asked for: an archive carries only one."""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from .interface import Backend, LoadError

ENTRY_POINT_GROUP = "torchserve_neuron_lstm.backends"
"""Entry points of this group name a class that is a `Backend`; the entry point's name is the engine's."""

_BUILT_IN = {
    "native": ("native.engine", "Native"),
    "inductor": ("inductor", "Inductor"),
    "onnxruntime": ("onnxruntime", "OnnxRuntime"),
    "openvino": ("openvino", "OpenVino"),
    "vollo": ("vollo.engine", "Vollo"),
    "neuronx": ("aws_neuron.neuronx", "NeuronX"),
    "neuron": ("aws_neuron.neuron", "Neuron"),
    "eager": ("eager", "Eager"),
}
_OF_ITS_OWN = {"vollo": "vollo", "native": "native"}
"""The folder that one engine alone needs."""
_HERE = Path(__file__).parent


def get_backend(name: str) -> Backend:
    """The engine of this name: one of ours, else one that an installed distribution offers.

    Raises:
        LoadError: there is none, or the distribution that offers it cannot be imported; says what there is.
    """
    if name in _built_in():
        module, kind = _BUILT_IN[name]
        return _instance(getattr(importlib.import_module(f".{module}", __package__), kind))
    offered = _offered()
    if name not in offered:
        raise LoadError(
            f"there is no backend {name!r} here, but {', '.join(backend_names()) or 'none at all'}. A backend of "
            f"another distribution is found once that is installed (entry point group {ENTRY_POINT_GROUP})"
        )
    return _load(offered[name])


def backend_names() -> tuple[str, ...]:
    """Every engine that `get_backend` finds here, ours first."""
    return tuple(dict.fromkeys([*_built_in(), *sorted(_offered())]))


def files_of_others(name: str) -> tuple[Path, ...]:
    """The files of our engines other than `name`: what an archive that serves by `name` leaves out.

    Eager stays: it runs what an engine leaves to the CPU.
    """
    others = [other for other in _built_in() if other not in (name, "eager")]
    folders = [_OF_ITS_OWN[other] for other in others if other in _OF_ITS_OWN]
    return (
        *(_file_of(other) for other in others),
        *(file for folder in folders for file in (_HERE / folder).glob("*.py")),
    )


def _built_in() -> list[str]:
    return [name for name in _BUILT_IN if _file_of(name).is_file()]


def _file_of(name: str) -> Path:
    return _HERE.joinpath(*_BUILT_IN[name][0].split(".")).with_suffix(".py")


def _offered() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _load(entry: EntryPoint) -> Backend:
    try:
        return _instance(entry.load())
    except Exception as error:
        owner = entry.dist.name if entry.dist is not None else entry.value
        raise LoadError(
            f"the backend {entry.name!r} of {owner} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _instance(kind: type[Backend]) -> Backend:
    return kind()

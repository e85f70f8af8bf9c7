"""Import paths, names and signatures that programs of users and archives depend on."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torchserve_neuron_lstm

from .projects import DATA

NAMES: dict[str, dict[str, Any]] = json.loads((DATA / "names.json").read_text())


def facts(value: Any) -> Any:
    """The promised parts of an object: a signature, the members of a class, the choices of a Literal."""
    if isinstance(value, type):
        return members(value)
    if inspect.isroutine(value):
        return signature(value)
    return [str(one) for one in getattr(value, "__args__", ())] or type(value).__name__


def members(value: type) -> Any:
    """The builtin bases of an exception; the fields and methods of any other class."""
    if issubclass(value, Exception):
        return [base.__name__ for base in value.__mro__ if base.__module__ == "builtins" and base is not object]
    own = {name: signature(one) for name, one in inspect.getmembers(value, inspect.isroutine) if is_public(name)}
    held = {name for one in value.__mro__ for name in inspect.get_annotations(one) if is_public(name)}
    made = {"": signature(value)} if dataclasses.is_dataclass(value) else {}
    return made | own | dict.fromkeys(sorted(held), "field")


def is_public(name: str) -> bool:
    """Whether a member is promised."""
    return not name.startswith("_") or name == "__call__"


def signature(value: Any) -> str:
    """Parameters with their kinds and defaults, without annotations."""
    found = inspect.signature(value)
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def kept() -> Iterator[Any]:
    """Each name that was kept."""
    for module, names in NAMES.items():
        yield from (pytest.param(module, name, id=f"{module}.{name}") for name in names)


@pytest.mark.parametrize(("module", "name"), kept())
def test_a_name_is_where_it_was(module: str, name: str) -> None:
    """A name keeps its members and parameters; a class may have more."""
    found, known = facts(getattr(importlib.import_module(module), name)), NAMES[module][name]
    if isinstance(known, dict):
        assert {member: found.get(member) for member in known} == known
    else:
        assert found == known


def test_tracing_exports_what_it_exported() -> None:
    """The names of docs/tracing.md."""
    from torchserve_neuron_lstm import tracing

    assert set(tracing.__all__) == set(NAMES["torchserve_neuron_lstm.tracing"])


def test_the_operators_have_the_schemas_of_exported_programs() -> None:
    """Exported programs in archives, and third-party engines, depend on them."""
    importlib.import_module("torchserve_neuron_lstm.backends.masked")
    kept = json.loads((DATA / "operators.json").read_text())
    found = {name: str(getattr(torch.ops.neuron_lstm, name).default._schema) for name in kept}
    assert found == kept


def test_the_partitioner_logs_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    """Users can silence the logger or raise its level."""
    from torchserve_neuron_lstm import tracing

    layer = torch.nn.Linear(2, 2)

    def func(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.addmm(layer.bias.detach(), x, layer.weight.detach()))

    config = tracing.PartitionerConfig(ops_to_partition=["aten::tanh"])
    with caplog.at_level(logging.DEBUG, "torchserve_neuron_lstm.partitioner"):
        traced = tracing.trace(func, torch.rand(1, 2), backend="onnxruntime", partitioner_config=config)

    assert traced(torch.zeros(1, 2)).shape == (1, 2)
    assert "torchserve_neuron_lstm.partitioner" in {record.name for record in caplog.records}


def test_presets_are_where_they_were() -> None:
    """Users copy the presets."""
    folder = Path(torchserve_neuron_lstm.__path__[0]) / "config" / "presets"
    assert sorted(file.name for file in folder.glob("*.yaml")) == json.loads((DATA / "presets.json").read_text())

"""Exported programs: files with time marks, copies at the sizes of one bucket, and torch's own assertions in them.

torch chooses the names of the symbols of batch and time, and its files drop these names. A recurrence in a program
shows which dimension is time; a program without one does not show it. So the dimension is marked, and the marks are
written beside the program.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.fx import Node

from ..bucketing.shapes import Bucket
from . import recurrent_operators as _recurrent_operators  # noqa: F401  registers the operators that programs call
from .exported_tensors import mark_time, time_dims
from .signature import signature_of

_EXTRA = "time.json"


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings of exporters and compilers, which are about internals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def specialize(
    program: torch.export.ExportedProgram, bucket: Bucket, *, constants_as_buffers: bool = False
) -> torch.export.ExportedProgram:
    """Export a program of symbolic batch and time at a bucket's sizes, without in-place operators.

    With `constants_as_buffers`, constants keep their names in the new program.
    """
    inputs = signature_of(program, bucket).example_inputs()
    with quiet(), torch.no_grad():
        # In-place operators are removed first: torch refuses to trace them again on a constant of a saved program.
        functional = program.run_decompositions({})
        module = functional.module()
        for name, value in functional.constants.items() if constants_as_buffers else ():
            path, _, attribute = name.rpartition(".")
            owner = module.get_submodule(path)
            if isinstance(value, torch.Tensor) and attribute not in owner._buffers:
                delattr(owner, attribute)
                owner.register_buffer(attribute, value)
        return torch.export.export(module, inputs)


def module_with(tensors: Mapping[str, torch.Tensor], persistent: Collection[str]) -> torch.nn.Module:
    """Build a module that holds tensors under their dotted names. `persistent` are the buffers of its state dict."""
    root = torch.nn.Module()
    for target, tensor in tensors.items():
        *path, name = target.split(".")
        owner = root
        for step in path:
            if not hasattr(owner, step):
                owner.add_module(step, torch.nn.Module())
            owner = owner.get_submodule(step)
        if isinstance(tensor, torch.nn.Parameter):
            owner.register_parameter(name, tensor)
        else:
            owner.register_buffer(name, tensor, persistent=target in persistent)
    return root


def save_program(program: torch.export.ExportedProgram, path: Path) -> None:
    """Write the program with its weights and time marks."""
    from .torch_files import torch_file

    with torch_file(path) as file:
        torch.export.save(program, file, extra_files={_EXTRA: json.dumps(time_dims(program))})


def load_program(path: Path) -> torch.export.ExportedProgram:
    """Read a program with its time marks, if the file has any."""
    extra: dict[str, str] = {_EXTRA: ""}
    program: torch.export.ExportedProgram = torch.export.load(path, extra_files=extra)
    mark_time(program, json.loads(extra[_EXTRA] or "{}"))
    return program


_WORDS = ("assert", "sym_constrain", "_check")


def is_assertion(node: Node) -> bool:
    """Whether a call only checks its arguments, and nothing uses it."""
    return node.op == "call_function" and not node.users and any(word in str(node.target) for word in _WORDS)

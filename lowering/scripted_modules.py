"""Modules in TorchScript, whose code no trace can follow."""

from __future__ import annotations

import torch

from .errors import DecisiveRefusal


class ScriptedModule(DecisiveRefusal):
    """A module in TorchScript; the message names it."""


def reject_scripted(model: torch.nn.Module) -> None:
    """Refuse a model with a module in TorchScript. Functions in TorchScript may be called.

    Raises:
        ScriptedModule: names the module and its class.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            own_class = getattr(module, "original_name", type(module).__name__)
            raise ScriptedModule(
                f"{name or 'the model'} is a TorchScript module ({own_class}), whose code cannot be traced: leave out "
                "torch.jit.script(module), and derive its class from torch.nn.Module in place of "
                "torch.jit.ScriptModule, without @torch.jit.script_method. Its weights keep their names"
            )

"""The folder `soak/`, and those that it uses, as packages, as in `tests/chaos`."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

for _name in ("chaos", "soak", "tools"):
    _spec = ModuleSpec(_name, None, is_package=True)
    _spec.submodule_search_locations = [str(Path(__file__).parents[2] / _name)]
    sys.modules.setdefault(_name, module_from_spec(_spec))

"""The folder `fuzz/` as a package, without making the repository's other files importable."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

_SPEC = ModuleSpec("fuzz", None, is_package=True)
_SPEC.submodule_search_locations = [str(Path(__file__).parents[2] / "fuzz")]

sys.modules.setdefault("fuzz", module_from_spec(_SPEC))

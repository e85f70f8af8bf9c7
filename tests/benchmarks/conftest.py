"""The folder `benchmarks/` as a package, without making the repository's other files importable."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

_SPEC = ModuleSpec("benchmarks", None, is_package=True)
_SPEC.submodule_search_locations = [str(Path(__file__).parents[2] / "benchmarks")]

sys.modules.setdefault("benchmarks", module_from_spec(_SPEC))

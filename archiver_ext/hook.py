"""The import hook that teaches `torch-model-archiver` the handler name `neuron_lstm`.

The archiver has no plug-in point, so a `.pth` file, installed beside the package, calls `install` when an interpreter
starts as `torch-model-archiver`, and in no other program. When the archiver's own module is then imported, its
`package_model` is wrapped: this one handler name comes here, every other goes through untouched. This file imports the
standard library only, so that archiving with any other handler costs nothing and cannot fail because of us.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

HANDLER = "neuron_lstm"
_ARCHIVER = "model_archiver.model_packaging"
_MARK = "_neuron_lstm_wrapped"

PackageModel = Callable[..., Any]
Archive = Callable[[Any, str], int]


def install() -> None:
    """Wrap the archiver when it is imported, or now if it already is.

    Idempotent, because a virtual environment can run a `.pth` file twice.
    """
    if _ARCHIVER in sys.modules:
        wrap(sys.modules[_ARCHIVER])
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def wrap(archiver: ModuleType, archive: Archive | None = None) -> None:
    """Replace `package_model` of the archiver's module by one that knows our handler; once only.

    `archive(config, manifest)` returns an exit code; the default makes our archive.

    Raises `SystemExit`: this archiver has no `package_model`, and our handler was asked for.
    """
    stock = getattr(archiver, "package_model", None)
    if stock is None:
        message = (
            "torchserve-neuron-lstm: cannot extend torch-model-archiver: this torch-model-archiver has no "
            "package_model; torch-model-archiver 0.12 is supported"
        )
        if any(argument.rpartition("=")[2] == HANDLER for argument in sys.argv[1:]):
            raise SystemExit(message)  # it would otherwise make an archive of another kind
        sys.stderr.write(f"{message}\n")
    elif not hasattr(stock, _MARK):
        archiver.package_model = _choosing(stock, archive or _archive)  # type: ignore[attr-defined]  # it has one, as was checked


def _choosing(stock: PackageModel, archive: Archive) -> PackageModel:
    def package_model(config: Any, manifest: str) -> Any:
        handler = config.handler
        if handler != HANDLER:
            # Our own name with a hyphen is refused, unless the user has such a file.
            if handler.replace("-", "_") == HANDLER and not os.path.exists(handler):  # noqa: PTH110 - this file is imported at each start of Python
                raise SystemExit(f"error: --handler {handler}: the name has an underscore; write --handler {HANDLER}")
            return stock(config, manifest=manifest)
        if code := archive(config, manifest):
            raise SystemExit(code)
        return None

    setattr(package_model, _MARK, True)
    return package_model


def _archive(config: Any, manifest: str) -> int:
    from .supervise import archive_supervised

    return archive_supervised(config, manifest)


class _Finder(MetaPathFinder):
    """Finder that finds the archiver's module as the other finders do, and wraps it once it has run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _ARCHIVER:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_wrap(module: ModuleType) -> None:
                run(module)
                wrap(module)

            spec.loader.exec_module = run_and_wrap  # type: ignore[method-assign]  # of this loader alone
        return spec

"""User code in an archive: files given with `--extra-files` and named in the YAML as `module:name`.

The bucket selector is written as `kernel: module:function` in the YAML:

    def choose(length: int, lengths: tuple[int, ...]) -> int

`length` is the timesteps of a sequence, `lengths` are those of the grid, ascending; the function returns the index of
the bucket length in which the sequence runs. It is called for every length while the archive is loaded, and not later.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ...bucketing.planner import tabulate_selector
from .checked_modules import serves_modules

Importing = Callable[[Path], "AbstractContextManager[None]"]
"""A function of a folder that makes a context in which the modules of the folder can be imported."""


def user_modules(name: str, directory: Path) -> list[ModuleType]:
    """Import a module from a file in `directory`; returns it, and then all other modules from there.

    The caller has entered a context of `Importing`.

    Raises `RuntimeError`: it cannot be imported; with the cause.
    """
    try:
        module = _import(name, directory)
    except Exception as error:
        raise RuntimeError(f"{name}.py cannot be imported: {type(error).__name__}: {error}") from error
    return [module, *(other for other in modules_of(directory) if other is not module)]


def modules_of(directory: Path, known: Collection[str] = ()) -> list[ModuleType]:
    """Return the imported modules of files in a directory, without this package, the entry file and the known names."""
    root = str(directory.resolve())
    return [
        module
        for name, module in list(sys.modules.items())
        if name not in known
        and name.partition(".")[0] not in (__name__.partition(".")[0], "neuron_lstm")
        and os.path.isabs(file := str(getattr(module, "__file__", None)))  # noqa: PTH117 - torch.ops has a relative one
        and str(Path(file).resolve()).startswith(f"{root}{os.sep}")
    ]


def imported_anew(modules: Iterable[ModuleType]) -> list[ModuleType]:
    """Import modules as if for the first time; if one of them cannot be imported twice, return all as they are."""
    before = {module.__name__: sys.modules.pop(module.__name__, module) for module in modules}
    try:
        return [importlib.import_module(name) for name in before]
    except Exception:  # noqa: BLE001 - the user's code
        sys.modules.update(before)
        return [*before.values()]


def import_reference(reference: str, directory: Path) -> Any:
    """Import the object that `reference` ("module:name") names, from a file in `directory`.

    The caller has entered a context of `Importing`.

    Raises `ImportError`, `AttributeError`: the module or the object is missing; or whatever the file raises.
    """
    module, _, name = reference.partition(":")
    return getattr(_import(module, directory), name)


def _import(name: str, directory: Path) -> ModuleType:
    module = importlib.import_module(name)
    file = Path(getattr(module, "__file__", None) or "")
    if not file.resolve().is_relative_to(directory.resolve()):
        raise ImportError(f"another module of this name is already imported ({file}); give this file another name")
    return module


def is_interrupt(error: BaseException) -> bool:
    """Whether an error can come from a signal, which Python tells the main thread alone."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def end_error(error: BaseException, whose: str) -> RuntimeError:
    """Convert sys.exit(), or another error that is no `Exception`, as extensions written in Rust raise them.

    It would end the worker and lose the requests of others.
    """
    if isinstance(error, SystemExit):
        return RuntimeError(f"{whose} called sys.exit(): it must raise an error instead")
    return RuntimeError(f"{whose} raised {type(error).__name__}, which is no Exception")


@contextmanager
def working_directory(directory: Path) -> Iterator[None]:
    """Make `directory` the working directory in this context, and its modules importable also after it.

    User code may import modules later. In a worker the entry file has done the second. Elsewhere the directory goes
    first on `sys.path`, and no bytecode is written into it.
    """
    before, bytecode = Path.cwd(), sys.dont_write_bytecode
    if not serves_modules(directory):
        sys.dont_write_bytecode = True
        if sys.path[:1] != [str(directory)]:
            sys.path.insert(0, str(directory))
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)
        sys.dont_write_bytecode = bytecode


def load_bucket_selector(
    reference: str | None, lengths: tuple[int, ...], directory: Path, importing: Importing = working_directory
) -> tuple[int, ...] | None:
    """Return the bucket lengths of a grid that the user's selector in `directory` returns; None without one.

    They are those of 1, 2, 3, ... timesteps.

    Raises `RuntimeError`: the function is missing, or its return value is not valid; with the cause.
    """
    if reference is None:
        return None
    with importing(directory):
        try:
            choose = import_reference(reference, directory)
        except Exception as error:
            raise RuntimeError(f"kernel {reference}: {type(error).__name__}: {error}") from error
        try:
            return tabulate_selector(choose, lengths)
        except ValueError as error:
            raise RuntimeError(f"kernel {reference}: {error}") from error

"""Guarded run of a command in this process, with the exit codes of `cli.py`, and the archive command on top of it."""

from __future__ import annotations

import gc
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.diagnostics import printable
from ..config.file_errors import describe_file_error
from .archive.workspace import Terminated, raise_on_termination

if TYPE_CHECKING:
    from .model_archiver import Flags

_FAILED = 1
_NEW_OBJECTS = 10_000
"""New objects after which Python looks for garbage.

Tracing a model makes millions, and nearly all of them stay. With Python's 700, lowering a model with a loop over
timesteps took 1.07 and 1.21 times as long.
"""
_NOT_WRITTEN = "; no file was written"
_BUG = "This is a bug in torchserve-neuron-lstm: please report it with the lines above."


def prepare_process() -> int:
    """Import what packaging needs, in a process that does nothing else. Returns the exit code."""

    def run() -> None:
        gc.disable()  # imports make a million objects, all of which stay
        import torch.export  # noqa: F401 - torch imports it at its first use

        from . import package, report  # noqa: F401 - for the next import of them

        gc.freeze()
        gc.set_threshold(_NEW_OBJECTS)
        gc.enable()

    return guarded(run, stopped=_NOT_WRITTEN)


def archive(flags: Flags, manifest: str, *, as_json: bool = False) -> int:
    """Make the archive of the archiver's flags in this process, and report. Returns the exit code."""

    def run() -> None:
        logging.basicConfig(format="%(levelname)s - %(message)s")  # as torch-model-archiver does
        from rich.console import Console

        from .commands import print_json
        from .package import package
        from .report import print_result, to_json

        result = package(flags, manifest, Console(stderr=True))
        if as_json:
            print_json(to_json(result))
        else:
            print_result(result, Console())

    return guarded(run, stopped=_NOT_WRITTEN)


def guarded(run: Callable[[], None], stopped: str = "") -> int:
    """Run a command, with one message for each way in which it can end. Returns the exit code.

    `stopped` is what to add where a signal ends it.
    """
    if sys.stdout is None:  # the next file that is opened would become what libraries print to
        sys.stderr.write("error: standard output is closed: redirect it to a file, or to /dev/null\n")
        return _FAILED
    if isinstance(sys.stdout, io.TextIOWrapper):  # its encoding may lack a character: of a path, or a table's ellipsis
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with raise_on_termination():
            run()
            sys.stdout.flush()  # while an error still has a message
    except (KeyboardInterrupt, Terminated) as end:
        by = end.signal if isinstance(end, Terminated) else signal.SIGINT
        sys.stderr.write(f"stopped by {by.name}{stopped}\n")
        return 128 + by
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich ends Python where its reader has ended
            _report_error(end.__context__)
        else:
            where = "in code of the model or its files: remove the call"
            sys.stderr.write(f"error: Python was ended by sys.exit (code {end.code}) {where}\n")
    except Exception as error:  # noqa: BLE001 - the outermost handler: an unexpected error is printed in full
        _report_error(error)
    except BaseException as error:  # noqa: BLE001 - of the user's code: ours raises none that is no Exception
        at = traceback.extract_tb(error.__traceback__)[-1]
        _tell(
            f"error: {Path(at.filename).name}, line {at.lineno}, raised {type(error).__name__}: {error}. It is no "
            f"subclass of Exception, so it cannot be handled as an error of the model: derive it from Exception\n"
        )
    else:
        return 0
    return _FAILED


def _report_error(error: Exception) -> None:
    if isinstance(error, OSError):
        try:
            sys.stdout.flush()
        except OSError:  # what it still holds is discarded: Python would fail again when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        sys.stderr.write("error: the reader of standard output ended before everything was written\n")
    elif isinstance(error, OSError):
        _tell(f"error: {describe_file_error(error)}\n")
    elif isinstance(error, MemoryError):
        sys.stderr.write(f"error: {str(error) or 'out of memory'}\n")
    elif isinstance(error, _user_errors()):
        _tell(f"error: {error}\n")
    else:
        _tell("".join(traceback.format_exception(error)))
        _tell(f"error: {type(error).__name__}: {error}\n{_BUG}\n")


def _tell(text: str) -> None:
    sys.stderr.write(printable(text))  # it may have names from a file of somebody else


def _user_errors() -> tuple[type[Exception], ...]:
    """Errors that are raised for the user; any other is a bug."""
    raised_by = {
        "backends.interface": ("CompileError", "LoadError"),
        "config.diagnostics": ("ConfigError",),
        "inference.errors": ("ArchiveError",),
        "lowering.errors": ("LoweringError",),
    }
    package = __name__.split(".")[0]
    loaded = {name: sys.modules.get(f"{package}.{name}") for name in raised_by}  # torch is not imported to compare
    return tuple(getattr(module, error) for name, module in loaded.items() if module for error in raised_by[name])

"""Lowering errors that name the line of the user's model, and explanations of torch's and the exporter's errors."""

from __future__ import annotations

import io
import linecache
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from functools import cache
from pathlib import Path
from types import FrameType

import torch

from ..backends.error_causes import causes

_TORCH = str(Path(torch.__file__).resolve().parent)
_HERE = Path(__file__).resolve().parent
_OURS = (str(_HERE), str(_HERE.parent / "tracing"))
"""Folders whose frames are between the exporter and the user's model."""
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_NO_CONTROL_FLOW = "choose by torch.where and gather, read no number (.item()), and leave out what only checks values"
_FORMULA = re.compile(
    r"Sym(Int|Bool|Float)\b|UnknownSize|__index__ method|failed to match any schema|BooleanAtom|be Rational|"
    r"inconsistent min=|Expected op to be|symbolic sizes"
)
"""Parts of errors about a size that is a formula, where Python, torch or numpy need a number."""
_SYMBOL = re.compile(r"\bs\d+\b")
_NEEDS_NUMBER = "uses the number of timesteps, or a value computed from it, where a plain number is needed"
_AS_TENSORS = "compute with tensors there, or with + - * // % alone"
_NUMBER_OF_CLASSES = "give one_hot the number of classes, as in one_hot(ids, num_classes=26); it counts them otherwise"


class LoweringError(Exception):
    """A model that cannot become a program; the message names the line and a way out."""


class InputsDoNotFit(LoweringError):
    """Declared inputs that do not fit the model."""


class Unexplained(LoweringError):
    """An error of Python or torch while a model was traced; the model may fail in eager mode too."""


class FailsEagerly(Unexplained):
    """A model that fails in eager mode on one request."""


class PartialTrace(LoweringError):
    """A trace that holds for some numbers of timesteps only."""

    excluded: frozenset[int] = frozenset()
    """The numbers of timesteps, of those that are served, for which it does not hold."""


class UnknownLoop(LoweringError):
    """A loop over timesteps of a kind that cannot be lowered; the message is the reason with the line."""


def is_torch_file(filename: str) -> bool:
    """Whether a file is torch's own."""
    return filename.startswith(_TORCH)


@cache  # lowering asks for each module that is imported, several times
def is_user_file(filename: str) -> bool:
    """Whether a file is part of the user's model: not of torch, Python or this package, not made by exec."""
    if filename.startswith(("<", _TORCH, *_OURS)) or "/lib/python3" in filename:
        return False  # nearly all files, without a look at the disk
    # A frame of this package may have the path of a symbolic link or the real path.
    real = str(Path(filename).resolve())
    return not real.startswith((_TORCH, *_OURS)) and "/lib/python3" not in real


def is_model_file(filename: str) -> bool:
    """Whether a file is part of the user's model, or of a library that is no part of torch."""
    theirs = "site-packages" in filename and not filename.startswith((_TORCH, *_OURS)) and "/sympy/" not in filename
    return theirs or is_user_file(filename)


def format_source_line(filename: str, line: int) -> str:
    """Format a line of source as `model.py:12: return torch.max(packed.data)`."""
    code = linecache.getline(filename, line).strip()
    return f"{Path(filename).name}:{line}: {code}" if code else f"{Path(filename).name}:{line}"


def calling_frame() -> FrameType | None:
    """Find the innermost frame of the user's model on the call stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def calling_line() -> str | None:
    """Find the innermost line of the user's model on the call stack."""
    frame = calling_frame()
    return None if frame is None else format_source_line(frame.f_code.co_filename, frame.f_lineno)


def raising_line(error: BaseException) -> str | None:
    """Find the innermost line of the user's model in the traceback of `error`."""
    entries = reversed(traceback.extract_tb(error.__traceback__))
    own = ((e.filename, e.lineno) for e in entries if is_user_file(e.filename) and e.lineno is not None)
    return next((format_source_line(file, line) for file, line in own), None)


def node_line(node: torch.fx.Node) -> str | None:
    """Find the innermost line of the user's model that created a node of an exported graph."""
    return _line_in(node.meta.get("stack_trace") or "")


def _line_in(trace: str) -> str | None:
    own = (match for match in reversed(list(_FRAME.finditer(trace))) if is_user_file(match["file"]))
    return next((format_source_line(match["file"], int(match["line"])) for match in own), None)


def source_suffix(line: str | None) -> str:
    """Format a line as ` (at model.py:12: ...)`; empty if no line is known."""
    return f" (at {line})" if line else ""


def at_line(node: torch.fx.Node) -> str:
    """Format the user's line of a node as `source_suffix` does."""
    return source_suffix(node_line(node))


@contextmanager
def explained_export_errors(name: str, *, dynamic_shapes: bool = False) -> Iterator[None]:
    """Turn an exporter's error into a `LoweringError` about the function `name`, with the user's line.

    Raises `LoweringError`: any error within; one that is already among its causes is raised as it is.
    """
    try:
        with _without_exporter_log(), _left_transforms():
            yield
    except LoweringError:
        raise
    except Exception as error:
        for cause in causes(error):
            if isinstance(cause, LoweringError):
                raise cause from None
        explained = explain_export_error(name, error, dynamic_shapes=dynamic_shapes)
        raise (Unexplained(_untraced(name, error)) if explained is None else LoweringError(explained)) from error


@contextmanager
def _left_transforms() -> Iterator[None]:
    """Leave the calls of `torch.vmap` that an error in their trace has left open: later code would be within them."""
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    finally:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


def _untraced(name: str, error: Exception) -> str:
    reason, line = f"{type(error).__name__}: {first_line(error)}", _line_of_causes(error)
    if _FORMULA.search(reason):
        return f"{name} {_NEEDS_NUMBER}{line}: {_AS_TENSORS}. In terms of T timesteps: {_SYMBOL.sub('T', reason)}"
    return f"{name} could not be traced: {reason}{line}"


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or else the name of its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _line_of_causes(error: Exception) -> str:
    found = (raising_line(cause) or _line_in(str(cause)) for cause in causes(error))  # torch quotes a node's trace
    return source_suffix(next(filter(None, found), None))


def explain_export_error(name: str, error: Exception, *, dynamic_shapes: bool) -> str | None:
    """Explain why the function `name` cannot be exported, with the user's line if the traceback has one."""
    text, first, line = str(error).strip(), first_line(error), _line_of_causes(error)
    if dynamic_shapes and ("onstraint" in text or ("specializ" in text and "data-dependent" not in text)):
        return (
            f"{name} fixes the batch or time dimension (a loop over timesteps, an LSTMCell, a constant size, or code "
            "that reads a size as a number); use nn.LSTM or nn.GRU over the whole sequence. The exporter's message: "
            f"{first}{line}"
        )
    kinds = {type(cause).__name__ for cause in causes(error)}
    if (
        "data-dependent" in text
        or "Cannot cast FakeTensor" in text  # .item() of what another .item() selects
        or ".numpy() is not supported" in text
        or kinds & {"DataDependentOutputException", "DynamicOutputShapeException"}
    ):
        advice = _NUMBER_OF_CLASSES if "one_hot(" in line else _NO_CONTROL_FLOW
        return (
            f"the shapes or the control flow of {name} depend on the values of its inputs{line}, which a compiled "
            f"program cannot follow: {advice}"
        )
    if (words := explain_torch_error(text)) is not None:
        return f"{name} cannot take the inputs as declared{line}: {words}"
    return None


def reject_non_tensors(name: str, outputs: Sequence[object], *, allow_none: bool = False) -> None:
    """Refuse outputs of the function `name` that are not tensors.

    Raises `LoweringError`: names the type and the value.
    """
    for output in outputs:
        if not isinstance(output, torch.Tensor) and not (allow_none and output is None):
            is_read = isinstance(output, (torch.SymInt, torch.SymFloat, torch.SymBool))  # by .item() or .tolist()
            what = "number read from a tensor" if is_read else f"{type(output).__name__} ({output!r})"
            raise LoweringError(f"{name} returns a {what}; every output must be a tensor{' (or None)' * allow_none}")


@contextmanager
def _without_exporter_log() -> Iterator[None]:
    """Keep torch's loggers and standard error silent, unless TORCH_LOGS asks for them."""
    if "TORCH_LOGS" in os.environ:
        yield
        return
    known = logging.Logger.manager.loggerDict.items()
    loggers = [entry for name, entry in known if name.startswith("torch") and isinstance(entry, logging.Logger)]
    with ExitStack() as stack, redirect_stderr(io.StringIO()):
        for logger in loggers:
            stack.callback(setattr, logger, "disabled", logger.disabled)
            logger.disabled = True
        yield


OTHER_FEATURES = (
    "{layer} takes {1} features (its input_size), but gets {2}{at}: if that is an input as it is, write {1} in place "
    "of {2} in `shape` under `inputs`; else compare `shape` with the line that makes these features of it"
)
NO_FEATURES = (
    "{layer} takes {1} features (its input_size) at the last dimension, which is batch or time here{at}: list "
    "the dimensions of `shape` under `inputs` in the order in which forward() takes them"
)
_FIXED_STATE = (
    "the initial state of a recurrent layer has the fixed shape [{2}], which fits one batch size only: read the batch "
    "size from the input, as in torch.zeros(layers, x.shape[0], hidden), or leave the state out"
)
_FIXED_VIEW = (
    "a tensor is reshaped to {1}, which fits one batch size or one number of timesteps only: read these sizes from a "
    "tensor, as in y.reshape(x.shape[0], -1, 9)"
)
_PRECISION = (
    "weights and inputs have different precisions: save the weights of model.float(), or declare the inputs with the "
    "`dtype` of the weights"
)
_RECURRENT_PRECISION = (
    "a recurrent layer has {2} weights, but gets {1} data: declare the inputs with `dtype: {2}`, or convert the model "
    "before its weights are saved, as in model.float()"
)
_VOCABULARY = (
    "an id is outside the vocabulary of an embedding, or the classes of a one_hot: give `range: [least, largest]` to "
    "the ids under `inputs`, both included, as in [0, 4999] for 5000 ids"
)
_SIZES = (
    "a layer takes {2} features, but gets {1}: compare the layer's size with `shape` under `inputs`, and the order of "
    "its dimensions with that of forward()"
)
_TOTAL = (
    "pad_packed_sequence pads to total_length={1}, and no sequence can be longer than that: leave larger buckets out, "
    "or pass total_length=x.size(1), of the padded input"
)
_TUPLE = (
    "a tuple has no attribute {1}. If it is an argument, its inputs are named by position, such as batch.0: name them "
    "by attribute instead, such as batch.{1}, under `inputs` and `lengths`"
)
_EXPLANATIONS = (
    (r"Expected total_length to be at least .*but got total_length=(\d+)", _TOTAL),
    (r"'tuple' object has no attribute '(\w+)'", _TUPLE),
    (r"input\.size\(-1\) must be equal to input_size\. Expected (\d+), got (\d+)", OTHER_FEATURES),
    (r"input\.size\(-1\) must be equal to input_size\. Expected (\d+), got (\S+)", NO_FEATURES),
    (r"Expected hidden(?:\[\d\])? size \(([^)]*)\), got [\[(]([^\])]*)[\])]", _FIXED_STATE),
    (r"shape '(\[[^']*\])' is invalid for input of size", _FIXED_VIEW),
    (r"RNN input dtype \(torch\.(\w+)\) does not match weight dtype \(torch\.(\w+)\)", _RECURRENT_PRECISION),
    (r"(expected|must) (m1 and m2 to )?have the same dtype", _PRECISION),
    (r"[Ii]nput type .* and (weight|bias) type .* should be the same", _PRECISION),
    (r"index out of range in self|Class values must be smaller than num_classes", _VOCABULARY),
    (r"a and b must have same reduction dim, but got \[.*?([^, ]+)\] X \[(\d+), \d+\]", _SIZES),
    (r"mat1 and mat2 shapes cannot be multiplied \(.*x(.+) and (\d+)x\d+\)", _SIZES),
)
"""Patterns of torch's messages, and what they mean, with the pattern's groups."""


def explain_torch_error(message: str) -> str | None:
    """Explain an error of torch; None where it says enough itself.

    >>> explain_torch_error("Expected hidden size (1, s77, 8), got [1, 4, 8]")[:69]
    'the initial state of a recurrent layer has the fixed shape [1, 4, 8],'
    """
    for pattern, explanation in _EXPLANATIONS:
        if (match := re.search(pattern, message)) is not None:
            return explanation.format(match[0], *match.groups(), layer="a recurrent layer", at="")
    return None

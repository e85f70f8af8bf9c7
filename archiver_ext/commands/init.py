"""`neuron-lstm init`: a commented model-config.yaml with the inputs that the model accepts."""

from __future__ import annotations

import argparse
import ast
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import PackagingError, refusing
from . import Commands, check_output, positive, print_note

if TYPE_CHECKING:
    from torch import nn

    from ...bucketing.shapes import TensorSpec
    from .infer_inputs import InferredInputs

_FRONTEND = """\
# TorchServe frontend parameters
minWorkers: 1       # TorchServe ignores minWorkers without maxWorkers
maxWorkers: 1
batchSize: 32       # requests taken at once; may exceed the largest batch below
maxBatchDelay: 1    # milliseconds that a request waits for others
responseTimeout: 60 # seconds

# The plug-in
neuron_lstm:
"""
_REST = """\
  # outputs: [logits]    # names of the outputs, in order; left out, they follow from what forward() returns
  backend: auto          # auto measures the engines here and selects one; or native, inductor, onnxruntime, ...
  precision: float32     # or bfloat16, float16, int8, with a tolerance of 1e-2, 2e-3, 5e-2: then leave tolerance out
  tolerance: {atol: 1.0e-5, rtol: 1.0e-5}  # |ours - eager| <= atol + rtol x |eager|
  overflow: reject       # a sequence beyond the largest length: reject answers 413, truncate cuts it
  # streaming: {}        # serve sequences chunk by chunk, in sessions; then leave overflow at reject
  # codec: my_codec:TextCodec  # a class in one of --extra-files that turns request bodies into inputs
  # threads: 4           # per worker; left out, the host's cores are divided among maxWorkers
  # placement: cores     # pin each worker to its own cores; left out, the system schedules them
"""
_LONGEST_NOTE, _LONGEST_REFUSAL = 200, 2000  # characters


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "init",
        help="write a commented model-config.yaml to start from, for a model",
        description="Write a commented model-config.yaml to start from. Inputs, sizes and constant arguments are "
        "inferred from trial calls of the model and from the shapes of its weights. Check them before packaging. The "
        "result is tried by lowering the model.",
    )
    command.add_argument("--model-file", required=True, type=Path, help="the Python file with the model's class")
    command.add_argument(
        "--args", nargs="+", default=[], type=_assignment, metavar="NAME=VALUE", help="arguments of the class"
    )
    command.add_argument("--class", dest="class_name", metavar="NAME", help="the class, if the file has several")
    command.add_argument("--method", metavar="NAME", help="the method to serve instead of forward()")
    command.add_argument(
        "--serialized-file", type=Path, help="the weights; their shapes determine the sizes that the constructor needs"
    )
    command.add_argument("--longest", type=positive, metavar="N", help="timesteps of the longest sequence to accept")
    command.add_argument("--no-try", action="store_true", help="do not try to lower the model, which takes seconds")
    command.add_argument("-o", "--output", type=Path, help="the file to write (default: standard output)")
    command.add_argument("-f", "--force", action="store_true", help="overwrite the output")
    command.set_defaults(run=_init)


def _assignment(text: str) -> tuple[str, Any]:
    """One NAME=VALUE; the value is a Python literal, or else the text itself.

    >>> _assignment("hidden=256"), _assignment("opt.cell=lstm")
    (('hidden', 256), ('opt.cell', 'lstm'))
    """
    name, equals, value = text.partition("=")
    if not (equals and all(part.isidentifier() for part in name.split("."))):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _init(options: argparse.Namespace) -> None:
    from ..archive.workspace import write_output
    from ..model_class import importable, load_class

    notes: list[str] = []
    if options.output is not None and options.output.exists() and not options.force:
        raise PackagingError(f"{options.output} exists; give --force to overwrite it")
    for file in filter(None, (options.model_file, options.serialized_file)):
        if not file.is_file():
            raise PackagingError(f"there is no file {file}")
        if options.output is not None:
            check_output(options.output, file, "a file of the model")
    with importable(options.model_file.resolve().parent):
        model_class = load_class(options.model_file.resolve(), options.class_name, notes.append)
        args = _arguments(model_class, dict(options.args), options.serialized_file)
        name = model_class.__name__ if options.class_name or notes else None
        text = starting_config(model_class, args, options.longest, name, options.method)
        refusal = None if options.no_try else _refusal(model_class, text)
    if refusal is not None:
        notes.append(refusal)
        text = textwrap.fill(refusal, 120, initial_indent="# ", subsequent_indent="# ") + "\n" + text
    for note in notes:
        print_note(note)
    if options.output is None:
        sys.stdout.write(text)
    else:
        write_output(options.output, text.encode())
        print_note(f"wrote {options.output}; check its inputs and buckets, then package the model:")
        weights = "WEIGHTS.pt" if options.serialized_file is None else str(options.serialized_file)
        words = ["neuron-lstm", "archive", "--model-name", "NAME", "--version", "1.0"]
        files = ["--model-file", str(options.model_file), "--serialized-file", weights]
        print_note(f"  {shlex.join([*words, *files, '--config-file', str(options.output)])}")


def _refusal(model_class: type[nn.Module], text: str) -> str | None:
    """Lower the model by a configuration, without its weights; returns why that is refused, or None."""
    from ...config.load import parse_config
    from ...lowering import lower
    from ..user_model import construct

    try:
        config = parse_config(text, "model-config.yaml")
        lower(construct(model_class, config.model.args, config.model.method, batched=config.model.batched), config)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        return f"lowering was tried and refuses this model with these inputs: {_note(str(error), _LONGEST_REFUSAL)}"
    return None


def _arguments(model_class: type[nn.Module], given: dict[str, Any], weights: Path | None) -> dict[str, Any]:
    from ...backends.safetensors_file import WeightsError
    from ..checkpoint import load_state_dict
    from ..user_model import construct
    from .infer_arguments import infer_arguments, nested, required_arguments

    if weights is None:
        if missing := required_arguments(model_class, given):
            raise PackagingError(
                f"{model_class.__name__} needs {', '.join(missing)}: give the weights with --serialized-file, whose "
                f"shapes tell sizes, or --args {' '.join(f'{name}=VALUE' for name in missing)}"
            )
        return nested(given)
    with refusing(WeightsError, "--serialized-file "):
        args = nested(infer_arguments(model_class, given, weights))
    load_state_dict(construct(model_class, args), weights, print_note)
    return args


def starting_config(
    model_class: type[nn.Module],
    args: Mapping[str, Any],
    longest: int | None,
    class_name: str | None = None,
    method: str | None = None,
) -> str:
    """Write a model-config.yaml that loads unchanged, with comments on what the user should check.

    `args` are the keyword arguments that the class is made with; they are written under `model`, with the name of the
    class and of the method that is served instead of forward(), if they are given.

    Raises `PackagingError`: the class cannot be made with `args`, they cannot be written as YAML, or the model takes
    sequences and `longest` is None.
    """
    from ..user_model import construct
    from .infer_inputs import infer_inputs

    found = infer_inputs(construct(model_class, args, method))
    if longest is None and _has(found, "time"):
        raise PackagingError("the model takes sequences: give --longest N, the timesteps of the longest one to accept")
    lines = (*_model(found, args, class_name, method), *_inputs(found), *_time(found, longest))
    return _FRONTEND + "".join(f"{line}\n" for line in lines) + _REST


def _model(found: InferredInputs, args: Mapping[str, Any], class_name: str | None, method: str | None) -> Iterator[str]:
    constants = dict(found.signature.constants)
    if args or constants or class_name or method or not found.batched:
        yield "  model:"
    if class_name:
        yield f"    class: {class_name}  # the model's class in --model-file"
    if method:
        yield f"    method: {method}  # served instead of forward(); its arguments are meant below"
    if not found.batched:
        yield "    batched: false  # forward() takes one request; the inputs below have a batch in front of it"
    if args:
        yield f"    args: {flow(dict(args))}  # keyword arguments of the model class"
    if constants:
        tried = "they were accepted" if found.refusal is None else "these are guesses"
        yield f"    forward: {flow(constants)}  # constant arguments of forward(): choose their values ({tried})"


def _inputs(found: InferredInputs) -> Iterator[str]:
    yield "  # forward()'s tensor arguments, in order"
    if found.refusal is None:
        yield "  # (forward() accepted tensors of these dtypes and shapes; check which of the dimensions is time)"
    else:
        yield f"  # (forward() accepted no tensors that were tried; with these it raised: {_note(found.refusal)})"
    yield "  inputs:"
    for spec in _written_inputs(found):
        if spec != found.mask:
            known = "" if spec.value_range is None else f", range: {flow(list(spec.value_range))}"
            dims = ", ".join(map(str, spec.shape))
            text = f"{{dtype: {spec.dtype}, shape: [{dims}], pad_value: {spec.pad_value:g}{known}}}"
            notes = "; ".join(_input_notes(spec, found))
            yield f"    {flow(spec.name)}: {text}{'  # ' * bool(notes)}{notes}"
    for name in found.signature.optional:
        yield f"    # {_note(name)} has a default: name it here if requests give it, or in model: forward: to fix it"


def _written_inputs(found: InferredInputs) -> tuple[TensorSpec, ...]:
    from ...bucketing.shapes import TensorSpec

    return found.inputs or (TensorSpec("input", "float32", ("batch", "time", 1)),)


def _input_notes(spec: TensorSpec, found: InferredInputs) -> Iterator[str]:
    if found.refusal is not None and (spec.name in found.unknown or not found.inputs):
        yield "Not inferred: write it as in {dtype: float32, shape: [batch, time, 12]}"
    elif found.refusal is not None:
        yield "a guess"
    if spec.vocabulary is not None:
        ids = "ids from 0"
        if spec.value_range is not None:
            ids = "0 is padding (a request with it is refused if the model counts by it), ids from 1"
        yield f"{ids} to {spec.vocabulary - 1}"
    if spec.dtype == "int64" and len(spec.shape) > 2:
        yield f"{spec.shape[-1]} is a guess: write the number that requests have"


def _time(found: InferredInputs, longest: int | None) -> Iterator[str]:
    """The lengths, the mask and the buckets."""
    name, mask, has_time = found.signature.lengths, found.mask, _has(found, "time")
    if name is not None and has_time:
        yield f"  lengths: {name}  # forward()'s argument for the true lengths [B]"
    else:
        yield "  # lengths: lengths  # forward()'s argument for the true lengths [B]; it seems to have none"
    if mask is not None:
        shape = "" if mask.shape == ("batch", "time") else f", shape: [{', '.join(map(str, mask.shape))}]"
        true_for = "padding" if "pad" in mask.name.lower() else "timesteps"
        yield "  # made of the lengths (check true_for: timesteps, if the mask is true at real timesteps, or padding)"
        yield f"  mask: {{name: {flow(mask.name)}, dtype: {mask.dtype}, true_for: {true_for}{shape}}}"
    yield "  # programs are compiled for every batch size by every length; the largest length is the longest you accept"
    yield "  buckets:"
    yield "    batch: [1, 4, 16, 32]"
    if longest is not None and has_time:
        yield f"    length: {sorted({-(-longest // part) for part in (1, 2, 4, 8)})}"


def _has(found: InferredInputs, axis: str) -> bool:
    return any(axis in spec.shape for spec in _written_inputs(found))


def _note(text: str, longest: int = _LONGEST_NOTE) -> str:
    line = "".join(sign if sign.isprintable() else " " for sign in text)
    return line if len(line) <= longest else f"{line[:longest]}..."


def flow(value: Any) -> str:
    """Format a plain value as YAML on one line. Raises `PackagingError`: it has no plain form in YAML."""
    from ...config.yaml_text import flow_text

    with refusing(ValueError):
        return flow_text(value)

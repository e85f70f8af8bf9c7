"""trace, dynamic_batch and replace_weights."""

from __future__ import annotations

import os
import shlex
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from . import _partitioner
from ._cores import host_cores
from ._script import Function, Guarded, scripted

UNSUPPORTED = frozenset(
    {
        "aten::lstm",
        "aten::gru",
        "aten::rnn_tanh",
        "aten::rnn_relu",
        "aten::_pack_padded_sequence",
        "aten::_pad_packed_sequence",
        "aten::mkldnn_rnn_layer",
        "aten::sort",
        "aten::argsort",
        "aten::nonzero",
        "aten::nonzero_numpy",
        "aten::masked_select",
        "aten::unique_dim",
        "aten::_unique2",
        "aten::fft_fft",
        "aten::linalg_svd",
    }
)
"""Operators that the compiler refuses, in addition to all namespaces other than aten."""

_KEYWORDS = (
    "input_output_aliases",
    "compiler_workdir",
    "compiler_args",
    "partitioner_config",
    "inline_weights_to_neff",
    "cpu_backend",
)


def trace(
    func: Callable[..., Any],
    example_inputs: Any,
    *_: Any,
    input_output_aliases: Mapping[torch.Tensor, int] | None = None,
    compiler_workdir: str | None = None,
    compiler_args: str | Sequence[str] | None = None,
    partitioner_config: Any = None,
    inline_weights_to_neff: bool = True,
    cpu_backend: bool = False,
) -> Any:
    """Compile `func` for inputs of exactly the shapes and dtypes of `example_inputs`."""
    if _:
        return _inferred(
            func,
            example_inputs,
            _,
            {
                "input_output_aliases": input_output_aliases,
                "compiler_workdir": compiler_workdir,
                "compiler_args": compiler_args,
                "partitioner_config": partitioner_config,
                "inline_weights_to_neff": inline_weights_to_neff,
                "cpu_backend": cpu_backend,
            },
        )
    examples = example_tensors(example_inputs)
    _check_target(_words(compiler_args), cpu_backend=cpu_backend)
    model = func if isinstance(func, torch.nn.Module) else Function(func)
    traced = jit_trace(Guarded(model, examples), examples)
    kinds = operators(traced.model.inlined_graph)
    if partitioner_config is not None:
        _partitioner.check(partitioner_config, kinds)
    elif refused := sorted({kind for kind in kinds if not is_supported(kind)}):
        raise RuntimeError(f"neuronx-cc: the operators {', '.join(refused)} are not supported")
    if compiler_workdir is not None:
        Path(compiler_workdir).mkdir(parents=True, exist_ok=True)
        (Path(compiler_workdir) / "graph.hlo.txt").write_text(str(traced.inlined_graph), encoding="utf-8")
        (Path(compiler_workdir) / "command.txt").write_text(shlex.join(_words(compiler_args)), encoding="utf-8")
    answer = traced(*examples)
    count = 0 if isinstance(answer, torch.Tensor) else len(answer)
    states = _states(model, input_output_aliases or {}, max(count, 1))
    return scripted(traced, len(examples), count, states, separated=not inline_weights_to_neff)


def _inferred(func: Callable[..., Any], example_inputs: Any, values: Sequence[Any], given: dict[str, Any]) -> Any:
    warnings.warn(
        "torch_neuronx.trace takes its options by keyword: those given by position are inferred, which will become an "
        "error",
        DeprecationWarning,
        stacklevel=3,
    )
    if len(values) > len(_KEYWORDS):
        raise TypeError(f"trace() takes {len(_KEYWORDS)} options, {len(values)} were given by position")
    return trace(func, example_inputs, **{**given, **dict(zip(_KEYWORDS, values))})  # noqa: B905 - as many as given


def example_tensors(example_inputs: Any) -> tuple[torch.Tensor, ...]:
    """A tensor or a tuple of tensors as a tuple."""
    given = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else example_inputs
    if not isinstance(given, (tuple, list)) or not all(isinstance(one, torch.Tensor) for one in given) or not given:
        raise TypeError("example_inputs must be a tensor or a tuple of tensors")
    return tuple(given)


def _words(arguments: str | Sequence[str] | None) -> list[str]:
    if isinstance(arguments, str):
        return shlex.split(arguments)
    return list(arguments or [])


def _check_target(words: Sequence[str], *, cpu_backend: bool) -> None:
    named = any(word == "--target" or word.startswith("--target=") for word in words)
    if cpu_backend and not named:
        raise ValueError("cpu_backend=True needs the --target flag among compiler_args")
    if not cpu_backend and host_cores() == 0:
        raise RuntimeError("no Neuron device was found: trace with cpu_backend=True and --target in compiler_args")
    if "--no-such-option" in words:
        raise RuntimeError("neuronx-cc: error: unrecognized arguments: --no-such-option")


def jit_trace(module: torch.nn.Module, examples: tuple[torch.Tensor, ...]) -> Any:
    """torch.jit.trace without its warnings on constants: this is the documented contract."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.jit.trace(module, examples, check_trace=False)


def operators(graph: Any) -> Counter[str]:
    """The number of each operator in a graph, without those of checks and of control flow."""
    return Counter(
        node.kind() for node in graph.nodes() if not node.kind().startswith("prim::") and node.kind() != "aten::Int"
    )


def is_supported(kind: str) -> bool:
    """Whether the compiler supports an operator such as `aten::mul`."""
    return kind.startswith("aten::") and kind not in UNSUPPORTED


def _states(model: torch.nn.Module, aliases: Mapping[torch.Tensor, int], outputs: int) -> dict[int, str]:
    named = {id(tensor): name for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    states: dict[int, str] = {}
    for tensor, index in aliases.items():
        if id(tensor) not in named:
            raise ValueError("input_output_aliases: a key must be a parameter or buffer of the model")
        if not 0 <= index < outputs:
            raise ValueError(f"input_output_aliases: there is no output {index} among {outputs}")
        states[index] = f"model.{named[id(tensor)]}"
    if len(states) != len(aliases):
        raise ValueError("input_output_aliases: two states are aliased to one output")
    return states


def dynamic_batch(neuron_script: Any) -> Any:
    """Allow any number of rows for a traced module, in place. Returns it."""
    _require_neuron(neuron_script)
    likes = [tensor for name, tensor in neuron_script.inner.named_buffers() if name.startswith("like")]
    if len({like.shape[0] if like.dim() else None for like in likes}) != 1 or not likes[0].dim():
        raise ValueError("dynamic batching needs inputs with the same size of the 0th dimension")
    neuron_script.dynamic = True
    return neuron_script


def replace_weights(neuron_model: Any, weights: torch.nn.Module | Mapping[str, torch.Tensor]) -> None:
    """Replace the weights of a module traced with `inline_weights_to_neff=False`, in place."""
    _require_neuron(neuron_model)
    if not neuron_model.separated:
        warnings.warn("the Neuron model does not contain any separated weights", UserWarning, stacklevel=2)
        return
    state = weights.state_dict() if isinstance(weights, torch.nn.Module) else weights
    for name, tensor in state.items():
        path, _, last = f"inner.model.{name}".rpartition(".")
        owner = neuron_model
        for part in path.split("."):
            owner = getattr(owner, part)
        if getattr(owner, last).shape != tensor.shape:
            raise ValueError(f"replace_weights: {name} has another shape than was compiled for")
        owner._c.setattr(last, tensor.detach())
    neuron_model.device = -1


def _require_neuron(module: Any) -> None:
    if not hasattr(module, "separated"):
        raise RuntimeError("this is no module that torch_neuronx.trace made")


def is_on_device() -> bool:
    """Whether this process may load a module onto a core."""
    return host_cores() > 0 and os.environ.get("NEURON_RT_NUM_CORES") != "0"

"""BucketModelConfig and bucket_model_trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ._script import script_module
from ._trace import example_tensors, trace


class BucketModelConfig:
    """The selection of buckets. State that buckets share is not part of the double."""

    def __init__(
        self,
        bucket_kernel: Callable[..., Any],
        *_: Any,
        shared_state_buffer: list[torch.Tensor] | None = None,
        shared_state_buffer_preprocessor: Callable[..., Any] | None = None,
        func_kwargs: dict[str, Any] | list[dict[str, Any]] | None = None,
    ) -> None:
        if shared_state_buffer is not None or shared_state_buffer_preprocessor is not None:
            # Nothing of ours hands one over: shared states stay with the caller. Silence would look like support.
            raise NotImplementedError("the double has no shared state buffer")
        self.bucket_kernel = bucket_kernel
        self.func_kwargs = func_kwargs


def bucket_model_trace(
    func: Callable[..., Any],
    example_inputs: Sequence[Any],
    bucket_config: BucketModelConfig,
    compiler_workdir: str | None = None,
    compiler_args: str | Sequence[str] | None = None,
) -> Any:
    """One module for several shapes. `func` returns (model, input_output_aliases)."""
    kwargs = bucket_config.func_kwargs
    each = kwargs if isinstance(kwargs, list) else [kwargs or {}] * len(example_inputs)
    if len(each) != len(example_inputs):
        raise ValueError(f"func_kwargs has {len(each)} dictionaries for {len(example_inputs)} buckets")
    kernel = bucket_config.bucket_kernel()
    if not isinstance(kernel, torch.jit.ScriptFunction):
        raise TypeError("bucket_kernel must return a function made by torch.jit.script")
    traces = []
    for index, (inputs, own) in enumerate(zip(example_inputs, each)):  # noqa: B905 - counted above
        model, aliases = func(**own)
        workdir = None if compiler_workdir is None else f"{compiler_workdir}/bucket{index}"
        traces.append(
            trace(model, inputs, input_output_aliases=aliases, compiler_workdir=workdir, compiler_args=compiler_args)
        )
    count = len(example_tensors(example_inputs[0]))
    parameters = ", ".join(f"x{i}" for i in range(count))
    taken = ", ".join(f"inputs[{i}]" for i in range(count))
    branches = "".join(
        f"    if bucket == {index}:\n        return self.trace{index}({taken})\n" for index in range(len(traces) - 1)
    )
    text = (
        f"def forward(self, {parameters}):\n"
        f"    inputs, index = kernel([{parameters}])\n"
        f"    bucket = int(index.item())\n"
        f"{branches}    return self.trace{len(traces) - 1}({taken})\n"
    )
    attributes = {f"trace{index}": one for index, one in enumerate(traces)}
    return script_module(text, {"torch": torch, "kernel": kernel}, **attributes)

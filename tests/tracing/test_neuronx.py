"""Tracing for NeuronX: with its emulation here, and with a compiler in another interpreter."""

from pathlib import Path
from typing import Any

import pytest
import torch
from neuron_doubles import interpreter, on_path
from traceable import Conv, Step

from torchserve_neuron_lstm import tracing
from torchserve_neuron_lstm.backends.interface import LoadError

OPTIONS: dict[str, Any] = {"compiler_args": "--target trn1", "cpu_backend": True, "backend": "neuronx"}


@pytest.mark.ci
def test_a_trace_may_be_made_where_neither_device_nor_its_package_is(tmp_path: Path) -> None:
    model, x = Conv().eval(), torch.rand(1, 1, 3, 3)
    traced = tracing.trace(model, x, **OPTIONS, compiler_python=interpreter(tmp_path))
    assert not traced.is_loaded
    traced.save(tmp_path / "model.traced")

    with pytest.raises(LoadError, match="torch-neuronx is not installed"):
        traced(x)
    with on_path(), torch.no_grad():
        torch.testing.assert_close(tracing.load(tmp_path / "model.traced")(x), model(x))


@pytest.mark.ci
def test_weights_of_a_trace_for_a_device_elsewhere_are_replaced(tmp_path: Path) -> None:
    other, x = Conv().eval(), torch.rand(1, 1, 3, 3)
    traced = tracing.trace(Conv(), x, **OPTIONS, compiler_python=interpreter(tmp_path), inline_weights_to_neff=False)

    tracing.replace_weights(traced, other)

    with on_path(), torch.no_grad():
        torch.testing.assert_close(traced(x), other(x))


@pytest.mark.ci
def test_states_are_kept_beside_the_device() -> None:
    model, zeros, x = Step(), torch.zeros(1, 1, 5), torch.rand(1, 6, 4)
    with on_path(), torch.no_grad():
        traced = tracing.trace(model, (x[:, :3], zeros, zeros), input_output_aliases={1: 1, 2: 2}, **OPTIONS)
        answer = torch.cat([traced(x[:, :3]), traced(x[:, 3:])], 1)

        torch.testing.assert_close(answer, model(x, zeros, zeros)[0])


@pytest.mark.ci
def test_the_compilers_files_are_left_where_they_are_wanted(tmp_path: Path) -> None:
    def choose() -> Any:
        return lambda tensors: (tensors, torch.tensor(tensors[0].shape[0] - 1))

    with on_path():
        tracing.trace(Conv(), torch.rand(1, 1, 3, 3), compiler_workdir=tmp_path / "one", **OPTIONS)
        traced = tracing.bucket_model_trace(
            lambda: (Conv(), {}),
            [torch.rand(1, 1, 3, 3), torch.rand(2, 1, 3, 3)],
            tracing.BucketModelConfig(choose),
            compiler_workdir=tmp_path / "two",
            **OPTIONS,
        )
        assert traced(torch.rand(2, 1, 3, 3)).shape == (2, 1, 1, 1)

    assert "--target trn1" in (tmp_path / "one" / "command.txt").read_text()
    assert {path.name for path in (tmp_path / "two").iterdir()} == {"0", "1"}


def test_compiling_for_a_device_that_is_not_here_names_it() -> None:
    with pytest.raises(ValueError, match="add compiler_args='--target NAME'"):
        tracing.trace(Conv(), torch.rand(1, 1, 3, 3), cpu_backend=True, backend="neuronx")


@pytest.mark.parametrize("backend", ["neuron", "vollo"])
def test_engines_that_compile_weights_in_do_not_keep_them_apart(backend: str) -> None:
    with pytest.raises(ValueError, match=f"inline_weights_to_neff=False: {backend} compiles the weights into"):
        tracing.trace(Conv(), torch.rand(1, 1, 3, 3), inline_weights_to_neff=False, backend=backend)

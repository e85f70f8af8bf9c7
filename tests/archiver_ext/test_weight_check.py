from pathlib import Path

import pytest
import torch

from torchserve_neuron_lstm.archiver_ext.checkpoint import check_finite, load_state_dict
from torchserve_neuron_lstm.archiver_ext.errors import PackagingError

from .conftest import Project


class Masked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.register_buffer("mask", torch.full((2, 2), float("-inf")).triu(1))
        self.limit = torch.nn.Parameter(torch.tensor(float("inf")), requires_grad=False)


def saved(folder: Path, dtype: torch.dtype = torch.float32, number: float | None = None) -> Path:
    model = Masked().to(dtype)
    if number is not None:
        model.linear.weight.data[1, 2] = number
    torch.save(model.state_dict(), folder / "weights.pt")
    return folder / "weights.pt"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_one_weight_that_is_no_finite_number_is_refused_by_name(tmp_path: Path, number: float) -> None:
    with pytest.raises(PackagingError, match=r"weights\.pt: 1 of 4 weights(.|\n)*linear\.weight: 1 of 6"):
        load_state_dict(Masked(), saved(tmp_path, number=number))


def test_an_infinite_mask_is_a_weight_like_any_other_but_not_one_of_nan(tmp_path: Path) -> None:
    model = Masked()
    load_state_dict(model, saved(tmp_path))
    assert bool(model.get_buffer("mask").isinf().any())

    model.get_buffer("mask")[0, 1] = float("nan")
    with pytest.raises(PackagingError, match="mask: 1 of 4"):
        check_finite(model, "weights.pt")


@pytest.mark.parametrize(("dtype", "name"), [(torch.float64, "float64"), (torch.float16, "float16")])
def test_weights_of_another_precision_are_counted_and_named(tmp_path: Path, dtype: torch.dtype, name: str) -> None:
    """Serving reads the file as it is, so its precision has to be the model's."""
    with pytest.raises(PackagingError) as refused:
        load_state_dict(Masked(), saved(tmp_path, dtype))

    assert "4 of 4 weights have another precision" in str(refused.value)
    assert f"linear.weight: the model has float32, the file {name}" in str(refused.value)
    torch.save(Masked().to(dtype).float().state_dict(), tmp_path / "weights.pt")  # the way out
    load_state_dict(Masked(), tmp_path / "weights.pt")


def test_nan_weights_are_refused_before_anything_is_compiled(project: Project) -> None:
    weights = torch.load(project.folder / "weights.pt")
    weights["lstm.weight_hh_l0"][0, 0] = float("nan")
    torch.save(weights, project.folder / "weights.pt")

    done = project.archive()

    assert done.returncode == 1
    assert "lstm.weight_hh_l0: 1 of 144" in done.stderr
    assert "compile" not in done.stderr
    assert not (project.folder / "tiny.mar").exists()

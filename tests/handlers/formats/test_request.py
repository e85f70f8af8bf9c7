import json
from pathlib import Path

import pytest
import torch

from torchserve_neuron_lstm.bucketing.shapes import TensorSpec
from torchserve_neuron_lstm.handlers.formats.request import Labels, read_labels

SCORES = TensorSpec("scores", "float32", ("batch", 3))


@pytest.mark.parametrize(
    "mapping",
    [
        {"0": "a", "1": "b", "2": "c", "3": "never asked for"},
        {"0": ["n0", "a"], "1": ["n1", "b"], "2": ["n2", "c"]},
        {"object_type_names": ["a", "b", "c"]},
    ],
)
def test_every_form_that_torchserve_reads_is_read(mapping: object, tmp_path: Path) -> None:
    assert read_labels(tmp_path, [SCORES]) is None
    (tmp_path / "index_to_name.json").write_text(json.dumps(mapping))

    assert read_labels(tmp_path, [SCORES]) == Labels(("a", "b", "c"))


@pytest.mark.parametrize(
    ("text", "outputs", "told"),
    [
        ("{", [SCORES], "index_to_name.json: Expecting"),
        ("[]", [SCORES], "must be an object from class number to name"),
        ('{"0": "a"}', [SCORES], "the model has 3 classes, but class 1 has no name"),
        ('{"0": "a", "1": 2, "2": "c"}', [SCORES], "must be a string"),
        ('{"0": "a"}', [SCORES, SCORES], "one output"),
        ('{"0": "a"}', [TensorSpec("tags", "float32", ("batch", "time", 3))], "'tags' ['time', 3]"),
        ('{"0": "a"}', [TensorSpec("tags", "float32", ("batch", "time"))], "one score for each class"),
        ('{"0": "a"}', [TensorSpec("tags", "int64", ("batch", 3))], "one score for each class"),
    ],
)
def test_names_that_do_not_fit_the_model_stop_the_load(
    text: str, outputs: list[TensorSpec], told: str, tmp_path: Path
) -> None:
    """Otherwise every request would fail."""
    (tmp_path / "index_to_name.json").write_text(text)

    with pytest.raises(RuntimeError) as refused:
        read_labels(tmp_path, outputs)
    assert told in str(refused.value)


def test_the_five_likeliest_are_named_the_likeliest_first() -> None:
    """TorchServe's image classifier does the same."""
    scores = torch.tensor([0.0, 5.0, 1.0, 4.0, 2.0, 3.0])

    named = Labels(("a", "b", "c", "d", "e", "f")).most_likely(scores)

    assert list(named) == ["b", "d", "f", "e", "c"]
    assert float(named["b"]) == pytest.approx(float(scores.softmax(0)[1]))
    # ImageNet has two classes of one name: the likelier is told.
    assert float(Labels(("crane", "crane")).most_likely(torch.tensor([0.0, 9.0]))["crane"]) > 0.99

"""The description of a model that is served by its own code."""

from typing import Any

from torchserve_neuron_lstm.config.own_model import MaskForm, OwnModel


def described(arguments: dict[str, dict[str, Any]], mask: MaskForm | None = None) -> OwnModel:
    return OwnModel(
        file="model.py",
        module="model",
        name="Model",
        args={},
        tuples=(),
        method=None,
        batched=True,
        arguments=arguments,
        mask=mask,
        draws=False,
        answers_padding=True,
        rewritten=(),
        recurrences=None,
        imports_late=False,
        reason="",
    )

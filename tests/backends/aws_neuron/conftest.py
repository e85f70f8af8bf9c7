from collections.abc import Iterator

import neuron_doubles
import pytest

from torchserve_neuron_lstm.backends import versions


@pytest.fixture
def double() -> Iterator[pytest.MonkeyPatch]:
    with neuron_doubles.on_path() as patch:
        patch.delenv(versions.VARIABLE, raising=False)
        yield patch

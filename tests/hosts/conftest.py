"""Archives that the tests of all hosts share."""

from __future__ import annotations

import os

import pytest
from host_archives import Archives, package


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    """All models, packaged by the standard command."""
    found = Archives(tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("sessions"))
    os.environ["NEURON_LSTM_SESSIONS"] = str(found.sessions)
    package(found.folder, tmp_path_factory.mktemp("sources"))
    return found

import os
import secrets
from pathlib import Path

import pytest
from host_archives import KEY_VARIABLE, Archives, package
from tiny_archive import make_archive


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked archive of the model `sums`, alone in its folder."""
    return make_archive(tmp_path_factory.mktemp("archives") / "tiny")


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    found = Archives(tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("sessions"))
    os.environ |= {"NEURON_LSTM_SESSIONS": str(found.sessions), KEY_VARIABLE: secrets.token_hex(32)}
    package(found.folder, tmp_path_factory.mktemp("sources"))
    return found

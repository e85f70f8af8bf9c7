from collections.abc import Iterator

import pytest

from .streaming_server import Streaming, streaming_server


@pytest.fixture(scope="package")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streaming]:
    with streaming_server(tmp_path_factory) as running:
        yield running

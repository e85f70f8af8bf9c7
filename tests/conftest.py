"""Settings that all tests share."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

# Test processes share the cores: threads that wait for each other cost more time than they save. The variable is set
# before torch is imported, and processes started by the tests inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests neither read nor fill the cache of the user; those of the cache name a folder of their own.
os.environ["NEURON_LSTM_CACHE"] = "off"

from hypothesis import HealthCheck, settings

# A busy machine with two cores is slow now and then; that is no failure of a law. What fails prints how to repeat it.
settings.register_profile("project", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that share a fixture of their file on one worker, which then makes it once."""
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("xdist_group") is None:
            shared = (made for name in item.fixturenames for made in _fixtures(item, name) if made.scope == "module")
            if any(made.baseid for made in shared):
                item.add_marker(pytest.mark.xdist_group(item.path.name))


def _fixtures(item: pytest.Function, name: str) -> Sequence[pytest.FixtureDef[object]]:
    return item._fixtureinfo.name2fixturedefs.get(name, ())

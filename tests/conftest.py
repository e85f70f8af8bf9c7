"""Settings that all tests share."""

from __future__ import annotations

import os

# Test processes share the cores: threads that wait for each other cost more time than they save. The variable is set
# before torch is imported, and processes started by the tests inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings

# A busy machine with two cores is slow now and then; that is no failure of a law. What fails prints how to repeat it.
settings.register_profile("project", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")

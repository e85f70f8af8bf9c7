"""Paths and methods of the REST API."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.hosts.routes import NoRouteError, Route, find_route


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("POST", "/predictions/m", Route("infer", "m")),
        ("PUT", "/predictions/m/2.0", Route("infer", "m", "2.0")),
        ("POST", "/v1/models/m:predict", Route("infer", "m")),
        ("POST", "/v2/models/m/infer", Route("infer", "m")),
        ("POST", "/v2/models/m/versions/2.0/infer", Route("infer", "m", "2.0")),
        ("GET", "/v1/models/m", Route("model ready", "m")),
        ("GET", "/v2/models/m/versions/1/ready", Route("model ready", "m", "1")),
        ("GET", "/v2/models/m", Route("model metadata", "m")),
        ("GET", "/v2", Route("server metadata")),
        ("GET", "/v2/", Route("server metadata")),
        ("GET", "/v2/health/live", Route("live")),
        ("GET", "/v2/health/ready", Route("ready")),
        ("GET", "/ping", Route("ping")),
    ],
)
def test_a_path_names_an_action_and_a_model(method: str, path: str, route: Route) -> None:
    """A version is optional."""
    assert find_route(method, path) == route


@pytest.mark.parametrize(("method", "path"), [("GET", "/predictions/m"), ("POST", "/v2"), ("DELETE", "/v2/models/m")])
def test_a_known_path_with_another_method_is_405(method: str, path: str) -> None:
    """As TorchServe has it."""
    with pytest.raises(NoRouteError) as refused:
        find_route(method, path)

    assert refused.value.status == 405


@given(st.text(max_size=60))
def test_no_path_makes_it_fail(path: str) -> None:
    """No other path begins as this one."""
    with pytest.raises(NoRouteError):
        find_route("GET", f"/ping/{path}")

from __future__ import annotations

from typing import Any

import pytest

from torchserve_neuron_lstm.sessions.settings import RedisSettings


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"url": "redis://user:s3cret@host"}, "^url: expected no user and no password"),
        ({"url": "redis://:s3cret@host:1/0"}, "^url: expected no user and no password"),
        ({"url": "redis://user@host"}, "^url: expected no user and no password"),
        ({"url": "http://host"}, "^url: expected redis://HOST:PORT/DATABASE"),
        ({"url": "host:6379"}, "^url: expected redis://HOST:PORT/DATABASE"),
        ({"url": ""}, "^url: expected redis://HOST:PORT/DATABASE"),
        ({"url": "redis://host/one"}, "^url: expected redis://HOST:PORT/DATABASE"),
        ({"url": "redis://host/-1"}, "^url: expected redis://HOST:PORT/DATABASE"),
        ({"url": "redis://host:0/0"}, "^url: expected redis://HOST:PORT/DATABASE"),
        ({"url": "rediss://host?ssl_cert_reqs=none"}, "^url: expected redis://HOST:PORT/DATABASE"),
        ({"url": "redis://host:70000"}, "^url: expected redis://HOST:PORT/DATABASE"),
        ({"url": "redis://[::1"}, "^url: expected redis://HOST:PORT/DATABASE"),
        ({"url": "redis://host", "ca_file": "ca.pem"}, "^ca_file: expected none without TLS"),
        ({"url": "redis://host", "username": "user"}, "^password_env: is missing: a username needs"),
        ({"url": "redis://host/1", "cluster": True}, "^url: expected database 0 with cluster: true"),
        ({"url": "redis://host", "timeout_seconds": 0.0}, "^timeout_seconds: expected more than 0, got 0"),
        ({"url": "redis://host", "timeout_seconds": float("nan")}, "^timeout_seconds: expected more than 0, got nan"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong) as refusal:
        RedisSettings(**settings)
    assert "s3cret" not in str(refusal.value)


def test_an_address_is_shown_whole() -> None:
    assert str(RedisSettings("redis://[::1]:7/3").server) == "redis://[::1]:7/3"
    assert str(RedisSettings("rediss://Host/").server) == "rediss://host:6379/0"

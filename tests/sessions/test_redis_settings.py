from typing import Any

import pytest

from torchserve_neuron_lstm.sessions.settings import RedisSettings


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        *(
            ({"url": f"redis://{address}"}, "^url: expected no user and no password")
            for address in ("user:s3cret@host", ":s3cret@host:1/0", "user@host")
        ),
        *(
            ({"url": url}, "^url: expected redis://HOST:PORT/DATABASE")
            for url in (
                *("http://host", "host:6379", "", "redis://host/one", "redis://host/-1", "redis://host:0/0"),
                *("rediss://host?ssl_cert_reqs=none", "redis://host:70000", "redis://[::1"),
            )
        ),
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

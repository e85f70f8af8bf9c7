import pytest
from streaming_archive import streaming_manifest

from torchserve_neuron_lstm.hosts.shared_sessions import check_shared_sessions
from torchserve_neuron_lstm.inference.errors import ArchiveError
from torchserve_neuron_lstm.sessions.settings import RedisSettings, SessionSettings

STATE = "0" * 32


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (SessionSettings("disk", STATE), "package it with store: redis, or with store: client and key_env"),
        (SessionSettings("client", STATE), "package it with key_env, the environment variable"),
    ],
)
def test_sessions_on_one_machines_disk_are_refused(settings: SessionSettings, told: str) -> None:
    with pytest.raises(ArchiveError, match=f"^model tagger .*{told}"):
        check_shared_sessions("tagger", streaming_manifest(settings))


@pytest.mark.parametrize(
    "settings",
    [
        None,
        SessionSettings("redis", STATE, redis=RedisSettings("redis://cache/0")),
        SessionSettings("client", STATE, key_env="SESSIONS_KEY"),
    ],
)
def test_sessions_that_all_machines_share_are_served(settings: SessionSettings | None) -> None:
    check_shared_sessions("tagger", streaming_manifest(settings))

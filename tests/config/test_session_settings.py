import json
from typing import Any

import pytest
from streaming_archive import streaming_manifest

from torchserve_neuron_lstm.config.manifest import ManifestError, parse_manifest
from torchserve_neuron_lstm.config.manifest_writer import manifest_text
from torchserve_neuron_lstm.config.streaming import StreamingConfig

STATE = "0123456789abcdef" * 2
CONFIG = StreamingConfig.model_validate({"store": "redis", "redis": {"url": "redis://cache:6379/0"}})


def written() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(manifest_text(streaming_manifest(CONFIG.settings(STATE))))
    return found


def refusal(manifest: dict[str, Any]) -> str:
    with pytest.raises(ManifestError) as refused:
        parse_manifest(json.dumps(manifest))
    return str(refused.value)


def test_settings_are_written_under_their_own_names() -> None:
    none = dict.fromkeys(("username", "password_env", "ca_file"))
    assert written()["streaming"] == {
        "store": "redis",
        "state": STATE,
        "directory": None,
        "redis": {**none, "url": "redis://cache:6379/0", "timeout_seconds": 1.0, "replicas": 0, "cluster": False},
        "key_env": None,
        "idle_seconds": 600.0,
        "max_sessions": 10_000,
        "max_bytes": 2**30,
        "fields": {word: f"ts_request_sequence_{word}" for word in ("id", "start", "end", "step", "token")},
        "confirm_seconds": 60.0,
        "client_header": None,
        "client_sessions": 100,
        "token_seconds": 86_400.0,
    }


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("store", "memory", "streaming.store: expected disk or redis or client, got 'memory'"),
        ("state", "0" * 31, "streaming.state: expected 32 hex digits"),
        ("state", "G" * 32, "streaming.state: expected 32 hex digits"),
        ("redis", {"url": "redis://h:0/0"}, "streaming.redis.url: expected redis://HOST:PORT/DATABASE"),
        ("redis", {"url": "http://h"}, "streaming.redis.url: expected redis://HOST:PORT/DATABASE"),
        ("idle_seconds", 0, "streaming.idle_seconds: expected a positive number, got 0"),
        ("idle_seconds", -1, "streaming.idle_seconds: expected a positive number, got -1"),
        ("max_sessions", 0, "streaming.max_sessions: expected a positive number, got 0"),
        ("max_bytes", -5, "streaming.max_bytes: expected a positive number, got -5"),
        ("redis", None, "streaming.redis: expected with store redis and with no other"),
        ("store", "disk", "streaming.redis: expected with store redis and with no other"),
    ],
)
def test_a_wrong_value_is_refused_by_name(key: str, value: Any, said: str) -> None:
    manifest = written()
    if isinstance(value, dict):
        manifest["streaming"][key].update(value)
    else:
        manifest["streaming"][key] = value

    assert f"variants.json: {said}" in refusal(manifest)


@pytest.mark.parametrize("fields", [{"id": "a"}, {**written()["streaming"]["fields"], "colour": "b"}])
def test_field_names_are_those_five(fields: dict[str, str]) -> None:
    manifest = written()
    manifest["streaming"]["fields"] = fields

    assert "streaming.fields" in refusal(manifest)


@pytest.mark.parametrize(("key", "value"), [("max_sessions", 15), ("max_bytes", 1)])
def test_each_partition_of_a_cluster_has_a_share(key: str, value: int) -> None:
    manifest = written()
    manifest["streaming"]["redis"]["cluster"] = True
    manifest["streaming"][key] = value

    assert f"streaming.{key}: expected 16 or more with cluster: true, got {value}" in refusal(manifest)


def test_only_a_model_in_chunks_of_time_can_stream() -> None:
    """A program for whole sequences has no state to continue from."""
    manifest = written()
    manifest["kind"] = "sequence"
    for variant in manifest["variants"]:
        variant["part"] = "sequence"

    assert "streaming: expected a model that runs in chunks of time, got 'sequence'" in refusal(manifest)

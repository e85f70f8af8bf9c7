"""What the manifest says of streaming: how sessions are told apart, kept and limited. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from .json_codec import JsonReader, invalid_value


@dataclass(frozen=True)
class Redis:
    """How to reach the server that keeps sessions."""

    url: str
    username: str | None
    password_env: str | None
    """The environment variable that holds the password."""
    ca_file: str | None
    timeout_seconds: float


@dataclass(frozen=True)
class SessionFields:
    """Names of headers and JSON fields."""

    id: str
    start: str
    end: str
    step: str
    token: str


@dataclass(frozen=True)
class SessionSettings:
    """One model's sessions."""

    store: Literal["disk", "redis", "client"]
    state: str
    """32 hex digits: archives with the same can go on from each other's sessions."""
    directory: str | None
    redis: Redis | None
    key_env: str | None
    idle_seconds: float
    max_sessions: int
    max_bytes: int
    fields: SessionFields


def read_session_settings(record: JsonReader) -> SessionSettings:
    """The settings as `dataclasses.asdict` writes them.

    Raises:
        ManifestError: they are not.
    """
    state = record.text("state")
    if len(state) != 32 or set(state) - set("0123456789abcdef"):
        raise invalid_value(f"{record.at}state", "32 hex digits", state)
    settings = SessionSettings(
        store=record.one_of("store", ("disk", "redis", "client")),
        state=state,
        directory=record.optional("directory", record.text),
        redis=record.optional("redis", lambda key: _redis(record.inner(key))),
        key_env=record.optional("key_env", record.text),
        idle_seconds=record.number("idle_seconds"),
        max_sessions=record.whole("max_sessions"),
        max_bytes=record.whole("max_bytes"),
        fields=_fields(record),
    )
    for key in ("idle_seconds", "max_sessions", "max_bytes"):
        if not (value := getattr(settings, key)) > 0:
            raise invalid_value(f"{record.at}{key}", "a positive number", value)
    if (settings.store == "redis") != (settings.redis is not None):
        raise invalid_value(f"{record.at}redis", "a server with store redis alone", settings.store)
    return settings


def _fields(record: JsonReader) -> SessionFields:
    names = record.texts("fields")
    if set(names) != set(SessionFields.__annotations__):
        raise invalid_value(f"{record.at}fields", ", ".join(SessionFields.__annotations__), list(names))
    return SessionFields(**names)


def is_redis_url(url: str) -> bool:
    """Whether a text is redis://HOST:PORT/DATABASE or the same with rediss://; port and database may be left out.

    >>> is_redis_url("redis://cache/0"), is_redis_url("redis://cache:0/0")
    (True, False)
    """
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    database = parts.path.strip("/")
    is_database = not database or (database.isascii() and database.isdigit())
    whole = parts.scheme in ("redis", "rediss") and bool(parts.hostname) and not parts.query and not parts.fragment
    return whole and has_port and is_database


def _redis(record: JsonReader) -> Redis:
    url = record.text("url")
    if not is_redis_url(url):
        raise invalid_value(f"{record.at}url", "redis://HOST:PORT/DATABASE, or rediss:// for TLS", url)
    return Redis(
        url=url,
        username=record.optional("username", record.text),
        password_env=record.optional("password_env", record.text),
        ca_file=record.optional("ca_file", record.text),
        timeout_seconds=record.number("timeout_seconds"),
    )

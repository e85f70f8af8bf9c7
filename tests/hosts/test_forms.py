"""Forms of HTTP requests, read as TorchServe reads them, and without holding up other requests."""

import asyncio
from collections.abc import Mapping

import pytest
from starlette.requests import Request
from starlette.types import Message

from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.hosts.held_bodies import HeldBody
from torchserve_neuron_lstm.hosts.rest import raw_request

TYPE = "multipart/form-data; boundary=x"
FORM = b'--x\r\nContent-Disposition: form-data; name="body"\r\n\r\n%b\r\n--x--\r\n'


async def read_form(content: bytes, content_type: str, *headers: tuple[bytes, bytes]) -> RawRequest:
    """Read a form as of an HTTP request."""
    own = [(b"content-type", content_type.encode()), *headers]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": own}

    async def receive() -> Message:
        return {"type": "http.request", "body": content}

    with HeldBody(10_000_000) as held:
        return await raw_request(Request(scope, receive), 10_000_000, held)


def test_a_field_of_a_form_replaces_no_header() -> None:
    """A header may name the client, as a proxy in front wrote it."""
    part = 'Content-Disposition: form-data; name="{}"; filename="a"\r\nContent-Type: text/plain\r\n\r\n[1]\r\n'
    names = ("x-client", "X-Client", "body")
    content = "".join(f"--x\r\n{part.format(name)}" for name in names).encode() + b"--x--\r\n"

    request = asyncio.run(read_form(content, TYPE, (b"x-client", b"alice")))

    assert set(request.row) == set(names)
    assert (request.header("x-client"), request.body().content_type) == ("alice", "text/plain")


@pytest.mark.parametrize(
    ("charset", "row"),
    [
        *((name, {"body": b"[1]"}) for name in ("utf-8", "UTF-8", "iso-8859-1", "Latin-1", "US-ASCII", '"utf-8"')),
        *((name, {}) for name in ("punycode", "unicode_escape", "utf-7", "idna", "nothing", "")),
    ],
)
def test_a_form_in_an_unusual_charset_is_not_parsed(charset: str, row: Mapping[str, object]) -> None:
    """Python's decoder of punycode takes minutes for a body of the largest size."""
    assert asyncio.run(read_form(FORM % b"[1]", f"{TYPE}; charset={charset}")).row == row


FILE = FORM.replace(b'"body"', b'"body"; filename="a"')


@pytest.mark.parametrize(
    ("content", "content_type", "size"),
    [
        (b"body=" + b"%41" * 200_000, "application/x-www-form-urlencoded", 200_000),
        *((one % (b"\r\n" * 1_000_000), TYPE, 2_000_000) for one in (FORM, FILE)),
    ],
    ids=["escapes", "field", "file"],
)
def test_other_requests_are_answered_while_a_large_form_is_parsed(
    content: bytes, content_type: str, size: int | None
) -> None:
    async def read() -> RawRequest:
        reading = asyncio.create_task(read_form(content, content_type))
        await asyncio.sleep(0)  # it begins
        assert not reading.done()
        return await reading

    row = asyncio.run(read()).row

    assert {name: len(value) for name, value in row.items() if isinstance(value, bytes)} == (
        {} if size is None else {"body": size}
    )


@pytest.mark.parametrize(
    "content",
    [b"a=1&" * 100_000, b"a=1" + b"&" * 1_000_000, FORM[:-7].replace(b"%b", b"") * 1001 + b"--x--\r\n"],
    ids=["urlencoded", "ampersands", "multipart"],
)
def test_a_form_with_too_many_fields_is_not_parsed(content: bytes) -> None:
    content_type = "application/x-www-form-urlencoded" if content.startswith(b"a") else TYPE

    assert asyncio.run(read_form(content, content_type)).row == {}

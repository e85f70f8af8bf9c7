"""Connections of streams: WebSockets with few messages at a time, whose bytes count among those of all requests."""

from __future__ import annotations

from collections import deque
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from ...handlers.responses import RequestError
from ..held_bodies import HeldBody

_MOST_WAITING = 8
"""Messages that wait for their turn. While there are more, no further bytes are parsed or read."""
_PARSED_AT_ONCE = 1 << 12
"""Bytes, in which there may be several messages."""
_MOST_BESIDE_MESSAGE = 1 << 16
"""Bytes of pings and of frames without content, beside those of one message."""
_IDLE_SECONDS = 600
"""The time in which the next message must begin: as long as a session waits by default."""
_STALLED_SECONDS, _BYTES_PER_SECOND = 75, 1 << 16
"""The time in which the rest of a message must come, with that of its bytes, and in which an answer must be read."""


class StreamConnection(WebSocketsSansIOProtocol):
    """A connection whose messages are answered one after the other."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._held = HeldBody(self.config.ws_max_size)
        self._unread = bytearray()
        self._since_message = 0
        """Bytes that were parsed after the last message."""
        self._sizes: deque[int] = deque()
        """Bytes of each message that waits."""
        self._in_work: int | None = None
        """Bytes of the message that is being answered."""
        self._answered = 0
        self._is_ending = False

    def data_received(self, data: bytes) -> None:
        """Keep what a client sends, and parse it if few messages wait."""
        try:
            self._held.add(len(data))
        except RequestError:
            self._fail(1013, "the server holds as many bytes as it may hold")
        else:
            self._unread += data
            if not self.transport.is_closing():
                self.transport.pause_reading()  # until this is parsed
            self._parse()

    def _parse(self) -> None:
        if self._unread and self.queue.qsize() < _MOST_WAITING and not self.transport.is_closing():
            part = bytes(self._unread[:_PARSED_AT_ONCE])
            del self._unread[:_PARSED_AT_ONCE]
            self._since_message += len(part)
            super().data_received(part)
            if self._since_message > self.config.ws_max_size + _MOST_BESIDE_MESSAGE:
                self._fail(1009, "the client sends too much beside its messages")
            elif self._unread:
                self.loop.call_soon(self._parse)  # others have their turn: a part may hold a thousand frames
            elif not self.read_paused and not self.transport.is_closing():
                self.transport.resume_reading()

    def send_receive_event_to_app(self) -> None:
        """Let a message wait for its turn."""
        content, self.frames = b"".join(self.frames), []
        if self.close_sent:
            return
        message: Any = {"type": "websocket.receive"}
        try:
            message |= {"text": content.decode()} if self.curr_msg_data_type == "text" else {"bytes": content}
        except UnicodeDecodeError:
            self._fail(1007, "expected text in UTF-8")
            return
        self._sizes.append(self._since_message)
        self._since_message = 0
        self.queue.put_nowait(message)
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    async def receive(self) -> Any:
        """Return the next message, once the one before is answered; none of a connection that is lost, or ends."""
        self._held.remove(self._in_work or 0)
        self._in_work = None
        if self._is_ending:
            self._end()
        if self._is_ending or self.disconnected:
            return {"type": "websocket.disconnect", "code": 1012 if self._is_ending else 1006}
        self._parse()
        message = await super().receive()
        if message["type"] == "websocket.receive":
            self._in_work, self._answered = self._sizes.popleft(), self._answered + 1
        return message

    def shutdown(self) -> None:
        """End the stream with 1012 once the message in work is answered: the client connects again, and continues."""
        if self._in_work is not None:
            self._is_ending = True
        else:
            self._end()

    def _end(self) -> None:
        try:
            super().shutdown()
        except Exception:  # noqa: BLE001 - the handshake was refused, or the client ends: other connections must end too
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what was not answered."""
        super().connection_lost(exc)
        self._unread.clear()
        self._held.drop()

    def keepalive_timeout(self) -> None:
        """Give up a client that answers no ping, unless its answer may be among what is not read yet."""
        if self.read_paused:
            self.pong_timer = self.loop.call_later(_STALLED_SECONDS, self.keepalive_timeout)
        else:
            super().keepalive_timeout()

    def waits_for(self) -> tuple[object, float] | None:
        """Return what the client has to do next, and the time that it has; None: it waits for the server."""
        if not self.writable.is_set():
            return "reading", _STALLED_SECONDS
        if self._in_work is not None:
            return None
        if self._since_message > _MOST_BESIDE_MESSAGE or not self.handshake_complete:
            return self._answered, _STALLED_SECONDS + self._since_message / _BYTES_PER_SECOND
        return self._answered, _IDLE_SECONDS

    def give_up(self) -> None:
        """End the connection of a client that had its time."""
        if self.writable.is_set() and not self.transport.is_closing():
            self._fail(1001, "the time for the next message has passed")
        else:
            self.transport.abort()

    def _fail(self, code: int, reason: str) -> None:
        self.conn.fail(code, reason)
        if self.conn.close_sent is None:  # there was no handshake
            self.transport.abort()
        else:
            self.handle_parser_exception()

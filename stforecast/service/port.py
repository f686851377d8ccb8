"""A server of HTTP at a port that strangers may reach, with limits.

uvicorn limits neither the headers' number and time nor connections and, with httptools, not even
the size of headers.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import functools
import logging
import time
from collections import Counter
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)

MOST_HEADERS = 100
"""Headers of a request."""

PART = 2**14
"""Bytes parsed at once, and of an incomplete head of a request."""

PATIENCE = 10.0
"""Seconds in which a handshake, or a request's head, must arrive."""

SLOWEST = 10_000
"""Bytes of a body that must arrive in a second, after `PATIENCE`."""

MOST_STRANGERS = 100
"""Connections of peers whom the application does not know."""

EVERY = 60.0
"""Seconds between two lines in the log for the same reason."""

refused, _logged = Counter[str](), dict[str, float]()
"""Numbers of refused requests by reason, and when each reason was last logged."""


def note_refusal(peer: Any, why: str) -> None:
    """Count a refused request, and log each reason once a minute at most."""
    refused[why] += 1
    now = time.monotonic()
    if now - _logged.get(why, -EVERY) >= EVERY:
        _logged[why] = now
        where = peer[0] if peer else "unknown"
        log.warning("refused a request of %s: %s (%d so far)", where, why, refused[why])


class _Connection(h11.Connection):
    """Refuses a request by its head."""

    def __init__(self, largest: int) -> None:
        super().__init__(h11.SERVER, PART)
        self.largest, self.why = largest, "it is not sound HTTP"

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            of = dict(event.headers)
            size = int(of.get(b"content-length", 0))
            if len(event.headers) > MOST_HEADERS:
                self._refuse(f"it has more than {MOST_HEADERS} headers")
            if b"transfer-encoding" in of:  # Each byte may be a chunk.
                self._refuse("it does not give its length")
            if size > self.largest:
                self._refuse(f"it has more than {self.largest:,} bytes")
        return event

    def _refuse(self, why: str) -> None:
        self.why = why
        raise h11.RemoteProtocolError(why)


class Port(H11Protocol):
    """A connection, which is cut off if a request takes too long.

    Attributes:
        known: whether the application knows who this is.
    """

    conn: _Connection

    def __init__(self, *args: Any, largest: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self.conn = _Connection(largest)
        self.app_state = {**self.app_state, "port": self}
        self.known, self.began = False, time.monotonic()
        self._waits: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Cut off the oldest stranger if there are too many."""
        super().connection_made(transport)
        self._time()
        strangers = [each for each in self.connections if isinstance(each, Port) and not each.known]
        if len(strangers) > MOST_STRANGERS:
            min(strangers, key=lambda each: each.began).cut_off("too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self._timer:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came part by part, since h11 limits only what is incomplete."""
        for start in range(0, len(data), PART):
            if not self.transport.is_closing():
                super().data_received(data[start : start + PART])

    def handle_events(self) -> None:
        """Handle what is complete, and wait some seconds for the rest."""
        super().handle_events()
        self._time()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request."""
        if self.cycle and not self.cycle.response_complete:  # An answer has begun.
            self.cut_off(self.conn.why)
            return
        note_refusal(self.client, self.conn.why)
        super().send_400_response(f"refused: {self.conn.why}")

    def cut_off(self, why: str) -> None:
        """End this connection now."""
        if not self.transport.is_closing():
            note_refusal(self.client, why)
        self.transport.abort()

    def _time(self) -> None:
        """Limit the time for a head or body that has begun to be waited for."""
        waits = self.conn.their_state
        if waits is self._waits or self.transport.is_closing():
            return
        self._waits = waits
        if self._timer:
            self._timer.cancel()
        if waits in (h11.IDLE, h11.SEND_BODY):
            size = (
                int(dict(self.headers).get(b"content-length", 0)) if waits is h11.SEND_BODY else 0
            )
            seconds = PATIENCE + size / SLOWEST
            self._timer = self.loop.call_later(seconds, self.cut_off, "it takes too long")


def port_of(scope: Any) -> Port | None:
    """Return the connection of an ASGI request; None without such a server."""
    found = scope.get("state", {}).get("port")
    return found if isinstance(found, Port) else None


class PortServer(uvicorn.Server):
    """uvicorn's server, which does not wait long for handshakes."""

    async def startup(self, sockets: Any = None) -> None:
        """Begin to listen."""
        if self.config.is_ssl:
            # Else each connection fills a buffer of 256 KiB before its handshake.
            setattr(asyncio.sslproto.SSLProtocol, "max_size", PART)  # noqa: B010
            loop: Any = asyncio.get_running_loop()
            listen = functools.partial(loop.create_server, ssl_handshake_timeout=PATIENCE)
            loop.create_server = listen
        await super().startup(sockets)


def make_server(app: Any, largest: int, **settings: Any) -> PortServer:
    """Return a server of an ASGI application, for bodies of `largest` bytes at most."""
    http: Any = functools.partial(Port, largest=largest)
    config = uvicorn.Config(
        app, http=http, ws="none", loop="asyncio", log_level="error", **settings
    )
    config.load()
    return PortServer(config)

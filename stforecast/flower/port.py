"""A server of HTTP at a port that strangers may reach.

uvicorn has no limit on the number of headers and connections or on the time that a request takes,
and with httptools none on the size of headers. Here a request costs little until it is complete,
and the slowest strangers are the first that are cut off.
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
"""Bytes that are parsed at once, and of a request's line and headers while they are incomplete."""

PATIENCE = 10.0
"""Seconds in which a handshake, or a request's line and headers, must arrive."""

SLOWEST = 10_000
"""Bytes of a body that must arrive in a second, after `PATIENCE`."""

LONGEST = 900.0
"""Seconds that an answer may take, until it is sent."""

MOST_STRANGERS = 100
"""Connections of peers that have not shown who they are."""

EVERY = 60.0
"""Seconds between two lines in the log for the same reason."""


class Refusals:
    """Counts refused requests, and logs each reason once a minute at most."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self._silent_until: dict[str, float] = {}

    def note(self, peer: Any, why: str) -> None:
        """Count a refusal; `why` completes "a request that"."""
        self.counts[why] += 1
        now = time.monotonic()
        if now >= self._silent_until.get(why, now):
            self._silent_until[why] = now + EVERY
            where, n = peer[0] if peer else "unknown", self.counts[why]
            log.warning("refused from %s: a request that %s (%d so far)", where, why, n)


refusals = Refusals()


class _Connection(h11.Connection):
    """Looks at the headers of each request before anything else does."""

    def __init__(self, largest: int) -> None:
        super().__init__(h11.SERVER, PART)
        self.largest, self.why = largest, ""

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.why = self._refused(event)
            if self.why:
                raise h11.RemoteProtocolError(self.why)
        return event

    def _refused(self, request: h11.Request) -> str:
        if len(request.headers) > MOST_HEADERS:
            return f"has more than {MOST_HEADERS} headers"
        of = dict(request.headers)
        if b"transfer-encoding" in of:  # Its chunks may be of one byte each.
            return "does not say its length"
        if int(of.get(b"content-length", 0)) > self.largest:
            return f"has more than {self.largest} bytes"
        return ""


class Port(H11Protocol):
    """A connection, with limits.

    Attributes:
        known: whether the application knows who this is.
    """

    def __init__(self, *args: Any, largest: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self.conn = _Connection(largest)
        self.app_state = {**self.app_state, "port": self}
        self.known = False
        self._stage: Any = None
        self._since, self._received = 0.0, 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Cut off the slowest stranger if there are too many."""
        super().connection_made(transport)
        self._time()
        strangers = [each for each in self.connections if isinstance(each, Port) and not each.known]
        if len(strangers) > MOST_STRANGERS:
            min(strangers, key=Port._speed).break_off("is one of too many")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self._timer:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came part by part, so that no head is larger than two parts."""
        self._received += len(data)
        for start in range(0, len(data), PART):
            if self.transport.is_closing():
                return
            super().data_received(data[start : start + PART])

    def handle_events(self) -> None:
        """Handle what is complete, and wait for the rest for some seconds."""
        super().handle_events()
        self._time()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request, unless its answer has begun."""
        why = self.conn.why or "is not sound HTTP"
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.break_off(why)
            return
        refusals.note(self.client, why)
        super().send_400_response(f"refused: a request that {why}")
        self._leave()

    def break_off(self, why: str) -> None:
        """Cut off this connection."""
        refusals.note(self.client, why)
        self._leave()
        self.transport.abort()

    def _leave(self) -> None:
        """Let the application see that nobody waits for its answer."""
        if self.cycle:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _time(self) -> None:
        """Set a time limit, if another stage of a request has begun."""
        stage = self.conn.their_state
        if stage is self._stage or self.transport.is_closing():
            return
        self._stage, self._since, self._received = stage, time.monotonic(), 0
        seconds = PATIENCE if stage is h11.IDLE else LONGEST
        if stage is h11.SEND_BODY:
            seconds = PATIENCE + int(dict(self.headers).get(b"content-length", 0)) / SLOWEST
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self.break_off, "takes too long")

    def _speed(self) -> float:
        """Bytes a second in this stage, as if a new connection had sent some."""
        return (self._received + 2**16) / (time.monotonic() - self._since + 1e-3)


def port_of(scope: Any) -> Port | None:
    """Return the connection of an ASGI request; None without such a server."""
    found = scope.get("state", {}).get("port")
    return found if isinstance(found, Port) else None


class Server(uvicorn.Server):
    """uvicorn's server, which does not wait long for handshakes."""

    async def startup(self, sockets: Any = None) -> None:
        """Begin to listen."""
        if self.config.is_ssl:
            # Else each connection holds a buffer of 256 KiB, before its handshake.
            setattr(asyncio.sslproto.SSLProtocol, "max_size", PART)  # noqa: B010
            loop: Any = asyncio.get_running_loop()
            loop.create_server = functools.partial(
                loop.create_server, ssl_handshake_timeout=PATIENCE
            )
        await super().startup(sockets)


def make_server(app: Any, largest: int, **settings: Any) -> Server:
    """Return a server of an ASGI application, for bodies of `largest` bytes at most."""
    http: Any = functools.partial(Port, largest=largest)
    config = uvicorn.Config(
        app, http=http, ws="none", loop="asyncio", log_level="error", **settings
    )
    config.load()
    return Server(config)

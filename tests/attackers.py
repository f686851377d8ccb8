"""Strangers who send requests that cost a server much, and somebody else who waits meanwhile."""

import contextlib
import socket
import ssl
import time

import psutil

HEAD = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: 127.0.0.1\r\n"


class Attacker:
    """A stranger at a port of this machine, with TLS if there is a certificate to trust."""

    def __init__(self, port, authority=None):
        self.port, self.context = port, authority and ssl.create_default_context(cafile=authority)

    def connect(self):
        found = socket.create_connection(("127.0.0.1", self.port), 60)
        return (
            self.context.wrap_socket(found, server_hostname="127.0.0.1") if self.context else found
        )

    def send(self, *parts, wait=True):
        """Send a request until the server stops it; return the beginning of the answer."""
        with self.connect() as one, contextlib.suppress(OSError):
            for part in parts:
                one.sendall(part)
            return one.recv(100) if wait else b""
        return b""

    def many_headers(self):
        self.send(HEAD, b"".join(b"X%d: a\r\n" % i for i in range(66_000)), b"\r\n")

    def huge_header(self):
        self.send(HEAD, b"X: ", *[bytes(2**20).replace(b"\0", b"a")] * 200)

    def slow_bodies(self):
        """Begin many large bodies and never end them."""
        many = [self.connect() for _ in range(150)]
        for one in many:
            with contextlib.suppress(OSError):
                one.sendall(HEAD + b"Content-Length: 60000000\r\n\r\n" + bytes(2**19))
        return many

    def broken_off(self):
        for i in range(50):
            body = b"Content-Length: 9000\r\n\r\nabc" if i % 2 else b"X"
            self.send(HEAD + body, wait=False)

    def wait_of_another(self, path=b"/"):
        """Return how long somebody else waits for an answer, in seconds."""
        begin = time.monotonic()
        asked = b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        assert self.send(asked).startswith(b"HTTP/1.1 ")
        return time.monotonic() - begin


def besiege(attacker, process, path=b"/"):
    """Attack a server in all these ways.

    Returns:
        How long somebody else waited at most, in seconds; by how much the server's memory grew, in
        MB; the processor time that it took, in seconds.
    """
    attacker.wait_of_another(path)
    server = psutil.Process(process)
    memory, begin = server.memory_info().rss, sum(server.cpu_times()[:2])
    waits, most, held = [], memory, []
    for name in ("many_headers", "huge_header", "slow_bodies", "broken_off"):
        held += getattr(attacker, name)() or []
        waits += [attacker.wait_of_another(path) for _ in range(3)]
        most = max(most, server.memory_info().rss)
    for one in held:
        one.close()
    return max(waits), (most - memory) / 2**20, sum(server.cpu_times()[:2]) - begin

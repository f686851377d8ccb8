"""A server that strangers may reach limits what a request costs."""

import threading

import pytest
from attackers import HEAD, Attacker
from waiting import wait_for

pytest.importorskip("uvicorn", reason="needs the extra serve")

from stforecast.flower.supernode import HOST, free_port
from stforecast.service import port as limits

pytestmark = pytest.mark.attack("strangers at the port")


async def say_ok(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def stranger(monkeypatch):
    """A stranger at a server that waits half a second for requests of a hundred bytes."""
    monkeypatch.setattr(limits, "PATIENCE", 0.5)
    limits.refused.clear()
    limits._logged.clear()
    found = Attacker(free_port())
    server = limits.make_server(say_ok, 100, host=HOST, port=found.port)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_for(lambda: server.started)
    yield found
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (b"".join(b"X%d: a\r\n" % i for i in range(99)) + b"\r\n", "more than 100 headers"),
        (b"X: " + b"a" * 2**16, "not sound HTTP"),
        (b"X: a", "takes too long"),
        (b"Content-Length: 101\r\n\r\n", "more than 100 bytes"),
        (b"Transfer-Encoding: chunked\r\n\r\n", "not give its length"),
        (b"Content-Length: -1\r\n\r\n", "not sound HTTP"),
    ],
)
def test_what_costs_much_is_refused_and_logged_once(stranger, caplog, request_, why):
    for _ in range(2):
        answer = stranger.send(HEAD + b"Y: a\r\n" + request_)
        assert not answer.startswith(b"HTTP/1.1 200")
    ((reason, number),) = limits.refused.items()
    assert (why in reason, number) == (True, 2)
    assert [r.name for r in caplog.records] == [limits.__name__]
    assert stranger.send(HEAD + b"Content-Length: 2\r\n\r\nab").startswith(b"HTTP/1.1 200")


def test_a_body_that_does_not_come_is_not_waited_for(stranger):
    with stranger.connect() as one:
        one.sendall(HEAD + b"Content-Length: 90\r\n\r\n")
        assert one.recv(100).startswith(b"HTTP/1.1 200")
        wait_for(lambda: limits.refused["it takes too long"])


def test_the_oldest_strangers_go_first_if_there_are_many(stranger, monkeypatch):
    monkeypatch.setattr(limits, "MOST_STRANGERS", 3)
    monkeypatch.setattr(limits, "PATIENCE", 60.0)
    many = [stranger.connect() for _ in range(3)]
    assert stranger.wait_of_another() < 60
    assert limits.refused == {"too many connections": 1}
    for one in many:
        one.close()

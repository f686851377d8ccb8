"""A SuperNode that goes on after a stall, or ends for a new one to be started."""

import time
from types import SimpleNamespace

import pytest
from waiting import wait_for

from stforecast.flower.own_supernode import patient, watch_heartbeats


class Client:
    """Counts heartbeats, which arrive while the client is `sound`."""

    sound = True

    def SendNodeHeartbeat(self, request):
        if not self.sound:
            raise OSError
        return SimpleNamespace(success=True)


@pytest.mark.parametrize("first_arrives", [True, False])
def test_a_supernode_ends_when_heartbeats_arrive_no_more(monkeypatch, first_arrives):
    class Own(Client):
        sound = first_arrives

    ended = []
    watch_heartbeats(Own, 0.3, ended.append)
    client, begin = Own(), time.monotonic()
    if first_arrives:
        for _ in range(3):
            client.SendNodeHeartbeat(None)
            time.sleep(0.15)
        assert ended == []
        client.sound = False
    with pytest.raises(OSError):
        client.SendNodeHeartbeat(None)
    wait_for(lambda: ended == [1])
    assert time.monotonic() - begin >= 0.3


def test_only_refusals_and_certificates_make_a_supernode_give_up():
    httpx = pytest.importorskip("httpx", reason="needs the extra flower")
    invoker = patient(lambda: SimpleNamespace(should_giveup=lambda error: True))()
    answer = httpx.Response(404, request=httpx.Request("POST", "https://a.org"))
    refused = httpx.HTTPStatusError("404", request=answer.request, response=answer)
    untrusted = httpx.ConnectError("[SSL] certificate verify failed: self-signed certificate")
    slow = httpx.ConnectTimeout("_ssl.c:989: The handshake operation timed out")
    cut = httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred")
    assert [invoker.should_giveup(e) for e in (refused, untrusted)] == [True, True]
    assert [invoker.should_giveup(e) for e in (slow, cut, httpx.ReadTimeout("tls"))] == [False] * 3

"""Flower's SuperNode, which goes on after a stall: `python -m stforecast.flower.own_supernode …`.

Flower 1.40 to 1.42 gives up at any error whose text has "ssl", so also at a handshake that takes
too long. Its main thread then ends, while another one keeps the process. Here only a certificate
that is not trusted makes it give up, and the process ends with its main thread, or if no heartbeat
has reached the server for two minutes. `stforecast.flower.supernode` starts it again.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any


def end(code: int) -> None:
    """End the process, whatever its other threads do."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def watch_heartbeats(
    client: Any, silent: float = 120.0, give_up: Callable[[int], None] = end
) -> None:
    """Let a class with `SendNodeHeartbeat` give up after so many seconds without an answer.

    Flower sends a heartbeat about every 20 seconds, and tries again after 25 at most.
    """
    send, last = client.SendNodeHeartbeat, list[float]()

    def watch() -> None:
        while (left := last[0] + silent - time.monotonic()) > 0:
            time.sleep(left)
        why = f"no heartbeat has reached the server for {silent:g} s"
        sys.stderr.write(f"WARNING: {why}\n")
        give_up(1)

    def send_and_note(self: Any, request: Any) -> Any:
        if not last:
            last.append(time.monotonic())
            threading.Thread(target=watch, daemon=True).start()
        answer = send(self, request)
        if answer.success:
            last[0] = time.monotonic()
        return answer

    client.SendNodeHeartbeat = send_and_note


def patient(make_invoker: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that makes Flower's invokers, which then give up at no stall."""
    from httpx import HTTPStatusError

    def make() -> Any:
        invoker = make_invoker()
        gives_up = invoker.should_giveup

        def should_give_up(error: Exception) -> bool:
            refused = isinstance(error, HTTPStatusError)
            untrusted = "certificate verify failed" in str(error).lower()
            return (refused or untrusted) and gives_up(error)

        invoker.should_giveup = should_give_up
        return invoker

    return make


def main() -> None:
    """Run Flower's SuperNode with the arguments of this process."""
    from flwr.supernode import fleet_http_client, fleet_http_connection
    from flwr.supernode.cli import flower_supernode

    watch_heartbeats(fleet_http_client.FleetHttpClient)
    invokers = "make_simple_http_retry_invoker"
    setattr(fleet_http_connection, invokers, patient(getattr(fleet_http_connection, invokers)))
    code: Any = 1  # It is not meant to return.
    try:
        flower_supernode()
    except SystemExit as e:
        code = e.code
    except BaseException:
        traceback.print_exc()
    end(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()

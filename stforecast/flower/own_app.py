"""The process that answers a node's messages: `python -m stforecast.flower.own_app HOST:PORT`.

Flower 1.41 starts a process for every message, which unpacks and runs the app that the server
holds, and imports everything again. So `stforecast node` starts its SuperNode with `--isolation
process`, in which Flower starts none, and this program next to it: it takes one message after the
other and answers it with this installation's app, whatever app the server holds. It runs no code of
the server's. Nodes stay in its memory between messages.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from stforecast.flower.client_app import make_client_app, without_answer

log = logging.getLogger(__name__)


def connect(address: str, token: str | None = None) -> Any:
    """Return a client of the SuperNode's API for processes on this machine.

    With the token of a message it may read and answer this one.
    """
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
    )
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient

    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            *([RuntimeTokenHttpInterceptor(token)] if token else []),
        ],
        retry_invoker=make_simple_http_retry_invoker(),
    )


def _answer_one(app: Any, answering: threading.Lock, address: str, token: str) -> None:
    """Answer a message as Flower's `run_clientapp` does, with this installation's app."""
    from flwr.common.constant import SubStatus
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

    try:
        with connect(address, token) as client, beating(client):
            message, context, _, _ = pull_task_input(client)
            try:
                with answering:
                    reply = app(message=message, context=context)
            except Exception as e:
                # Such as a kind of message that the app does not know.
                log.exception("no answer to the server")
                reply = without_answer(message, type(e).__name__)
            push_message(client, reply, context)
            push_task_output(client, context, SubStatus.COMPLETED, "")
    except Exception as e:  # Such as an answer that nobody waits for any more.
        log.warning("a message was not answered: %r", e)


@contextlib.contextmanager
def beating(client: Any) -> Iterator[None]:
    """Let the SuperNode know that a message is being answered."""
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http

    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heartbeat.start()
    try:
        yield
    finally:
        if heartbeat.is_running:
            heartbeat.stop()


def answer_all(address: str) -> None:
    """Answer all messages of a SuperNode, one after the other.

    Each has a thread, as Flower waits for up to 80 minutes for the rest of a message whose server
    ended while it sent it, and such a message delays no other.
    """
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    # By which Flower's heartbeats would end a process whose message nobody waits for.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The app answers whatever the server asks for, also what is no message to a client's app.
    asked = AcquireTaskRequest(supported_task_types=list(TaskType))
    # Flower's own variable for the seconds between two looks for a message.
    pause = float(os.environ.get("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", 1))
    app, answering, client = make_client_app(), threading.Lock(), connect(address)
    while True:
        if token := client.AcquireTask(asked).token:
            given = app, answering, address, token
            threading.Thread(target=_answer_one, args=given, daemon=True).start()
        time.sleep(pause)


if __name__ == "__main__":
    answer_all(sys.argv[1])

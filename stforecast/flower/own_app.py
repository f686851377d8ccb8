"""Processes that answer a node's messages: `python -m stforecast.flower.own_app HOST:PORT`.

Flower 1.41 starts a process for every message, which unpacks and runs the app that the server
holds. So `stforecast node` starts its SuperNode with `--isolation process`, in which Flower starts
none, and this program beside it: it takes each message and answers it with this installation's app,
whatever app the server holds. It runs no code of the server's.

Most of a process's time would go into importing Flower, so where that is safe a message's process
is forked from this one, which has imported it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import time
from importlib import import_module
from multiprocessing.process import BaseProcess
from typing import Any

from stforecast.flower.client_app import make_client_app, without_answer
from stforecast.flower.supernode import end_with_parent

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


def _answer_one(address: str, token: str) -> None:
    """Answer a message as Flower's `run_clientapp` does, with this installation's app."""
    from flwr.common.constant import SubStatus
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

    end_with_parent()  # Which ends with the SuperNode.
    client = connect(address, token)
    HeartbeatSender(make_task_heartbeat_fn_http(client)).start()
    message, context, _, _ = pull_task_input(client)
    try:
        reply = make_client_app()(message=message, context=context)
    except Exception as e:
        # Such as a kind of message that the app does not know.
        log.exception("no answer to the server")
        reply = without_answer(message, type(e).__name__)
    push_message(client, reply, context)
    push_task_output(client, context, SubStatus.COMPLETED, "")


def answer_all(address: str) -> None:
    """Answer all messages of a SuperNode, each in a process of its own."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    # Forks of a process that has imported Flower are safe on Linux only.
    processes: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    # The app answers whatever the server asks for, also what is no message to a client's app.
    asked = AcquireTaskRequest(supported_task_types=list(TaskType))
    # Flower's own variable for the seconds between two looks for a message.
    client, pause = connect(address), float(os.environ.get("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", 1))
    running: list[BaseProcess] = []
    while True:
        found = client.AcquireTask(asked)
        running = [each for each in running if each.is_alive()]
        if found.token:
            running.append(processes.Process(target=_answer_one, args=(address, found.token)))
            running[-1].start()
        time.sleep(pause)


if __name__ == "__main__":
    make_client_app()
    import_module("flwr.supernode.runtime.run_clientapp")  # For all that are forked.
    answer_all(sys.argv[1])

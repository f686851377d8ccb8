"""Flower's `ClientApp`, which runs on nodes.

It imports little, see `stforecast.flower.hand_over`.
"""

from __future__ import annotations

import logging
from typing import Any

from stforecast.flower.hand_over import ABOUT, PAYLOAD, WORKER, ask_worker, content_of

log = logging.getLogger(__name__)


def make_client_app() -> Any:
    """Return Flower's `ClientApp`, which answers for a node.

    It asks the worker that the node's configuration names; without one it answers by itself.
    """
    import flwr.app
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def answer(message: Any, context: Any) -> Any:
        try:
            about, arrays = _answer(message.content, context)
            if "error" not in about:
                return flwr.app.Message(content_of(about["text"], arrays), reply_to=message)
            kind = about["error"]
        except Exception as e:
            # Flower would send the server the error's text, with paths of the node.
            log.exception("no answer to the server")
            kind = type(e).__name__
        return without_answer(message, kind)

    return app


def without_answer(message: Any, kind: str) -> Any:
    """Return the error that a node sends when it cannot answer a message."""
    import flwr.app

    error = flwr.app.Error(100, f"{kind}, see the node's own log")  # Flower's own codes are below.
    return flwr.app.Message(error, reply_to=message)


def _answer(content: Any, context: Any) -> tuple[dict[str, Any], Any]:
    """Return the answer's text, or the class of an `error`, and its tensors."""
    node = dict(context.node_config)
    socket = node.pop(WORKER, None)
    about = {"text": content[ABOUT]["json"], "run": dict(context.run_config), "node": node}
    arrays = content.get(PAYLOAD, {})
    if socket:
        return ask_worker(str(socket), about, arrays)
    from stforecast.flower.worker import answer

    return answer(about, arrays)

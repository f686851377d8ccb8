"""What a node's clients received last, which is all that they know of the server.

A node trains, and a saved model of it forecasts, with a method whose server's state are these rows,
one for each client, by the names of the method's `broadcast`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stforecast.federated.core.method import Method, overridden
from stforecast.federated.core.state import ServerState, State
from stforecast.federated.core.tensors import Payload, take, with_axes


def behind_link(method: Method) -> Method:
    """Make a method for a node, whose server's state are the rows that its clients received.

    It broadcasts these; a client without any receives the mean of all.
    """

    def server_for(received: Payload, ids: Tensor) -> Payload:
        rows = {}
        for name, t in received.items():
            some, known = ids.to(t.device), with_axes(ids >= 0, t.ndim).to(t.device)
            rows[name] = torch.where(known, t[some], _common(t))
        return rows

    return overridden(
        method, broadcast=lambda server, to: take(server, to.ids), server_for=server_for
    )


def _common(rows: Tensor) -> Tensor:
    """Return the mean of rows; where they are equal or no fractions, the first."""
    if not rows.is_floating_point() or bool((rows == rows[:1]).all()):
        return rows[0]
    return rows.mean(0)


def server_alone(method: Method, fresh: State, received: Payload) -> ServerState:
    """Return a server's state with which a node's clients go on by themselves.

    It has what they received last. The rest begins as in a new federation, such as a server's
    moments or all clients' prototypes.

    Args:
        method: their method, not `behind_link`.
        fresh: their state before the first round.
        received: what they received, one row for each.
    """
    begun = fresh.server
    own = [name for name, t in received.items() if name in begun and begun[name].shape == t.shape]
    known = {name: t if name in own else _common(t) for name, t in received.items()}
    server = {**begun, **known}
    sent = method.broadcast(server, fresh.participants())
    return {name: t for name, t in server.items() if name in begun or name in sent}

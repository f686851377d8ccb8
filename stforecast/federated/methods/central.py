"""Central training: one model on the pooled data of all clients.

The opposite reference to `solo`: the accuracy that a federation could reach if no data had to stay
on its clients. It pools data (`pooled`), so tables mark it; it is not a federated method.

All data are one client's, so a round is `epochs` passes over them. Of forecasts, a batch is
`batch_size` times of all cells (`stforecast.data.clients`), as in the published training of
road-traffic models; of images, `batch_size` images, and in a task stream also those of former
tasks. `rounds.csv` counts 0 bytes, since no message is sent in any round. Instead, every client
sends its whole training data once, and later the inputs of every prediction.
"""

from __future__ import annotations

from typing import ClassVar

from stforecast.federated.core.declared import Attacked, Needs
from stforecast.federated.core.method import Method
from stforecast.federated.core.options import names_of
from stforecast.federated.core.training import SLOW
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink


class Central(Method):
    """Plain training of one client that holds the pooled data."""

    name = "central"
    summary = "trains one model on the data of all clients, in one place (not federated)"
    paper = "reference"
    attacked = Attacked(unguarded="it has one client")
    pooled: ClassVar[bool] = True
    needs = Needs(former_stages=True)
    unread = names_of(Uplink, Robust) | SLOW | {"participation", "full_start"}

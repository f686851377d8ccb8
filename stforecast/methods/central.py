"""Central training: one model on the pooled records of all cells.

The opposite reference to `solo`: the accuracy that a federation could reach if no data had to stay
on its clients. It pools data (`pooled`), so tables mark it; it is not a federated method.

All cells are one client (`stforecast.data.pooling`). A batch is `batch_size` times of all cells, as
in the published training of road-traffic models, and a round is `epochs` passes over the training
part. `rounds.csv` counts 0 bytes, since no message is sent in any round. Instead, every cell sends
its whole training series once, and later the recent readings for every forecast.
"""

from __future__ import annotations

from typing import ClassVar

from stforecast.federated.method import Method


class Central(Method):
    """Plain training of one client that holds the pooled data."""

    name = "central"
    summary = "trains one model on the records of all cells, in one place (not federated)"
    paper = "reference"
    pooled: ClassVar[bool] = True

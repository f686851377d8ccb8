"""Central training: one model on the records of all cells, brought to one place beforehand.

The reference from the other side than `solo`: what a federation could reach if nothing had to stay
on its clients. It pools data (`pooled`), so tables mark it; it is no federated method.

All cells are one client (`stforecast.data.pooling`). A batch is `batch_size` times of all cells, as
in the published training of road-traffic models, and a round is `epochs` passes over the training
part. `rounds.csv` counts 0 bytes, since no message is sent in any round. What crossed instead is
every cell's whole training series, once, and later the recent readings of every forecast.
"""

from __future__ import annotations

from typing import ClassVar

from stforecast.federated.method import Method


class Central(Method):
    """The base class's plain training, of the one client that the pooled data are."""

    name = "central"
    summary = "trains one model on the records of all cells, in one place (not federated)"
    paper = "reference"
    pooled: ClassVar[bool] = True

"""STID: embeddings of the window, the cell, the time of day and the day, then residual layers.

Shao, Zhang, Wang, Wei, Xu: Spatial-Temporal Identity: A Simple yet Effective Baseline for
Multivariate Time Series Forecasting, CIKM 2022, arXiv 2208.05233. Sizes and dropout are as in
the released code for METR-LA.

A client learns and keeps the spatial identities of its cells (`SplitModel.own`): methods that
average models leave them out, so they distinguish the cells under a global model. A client of one
cell has one vector; one of several cells, or of all (pooled data), a table as in the paper.

Time identities come from the windows' calendar. The time of day is looked up in a table with
an entry for each step of the period, 288 for steps of 5 minutes. The day's
identity is the sum of the vectors of all indicators that hold: with `calendar` "weekdays" that is
the paper's table of seven, with "week" it distinguishes weekdays, Saturday and Sunday; a holiday
adds its own. Both belong to the first target; the released code takes the last input's.
Without `calendar` there are no time identities, and a warning is logged.
"""

from __future__ import annotations

import logging
import math
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stforecast.data.clients import Cells
from stforecast.data.clock import CALENDAR_INPUTS
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.layers import ClientLinear, Stacked, uniform
from stforecast.federated.core.options import CheckedOptions, Depth, ShareBelowOne, Width
from stforecast.federated.core.population import SplitModel
from stforecast.federated.core.prototypes import by_key
from stforecast.federated.core.state import generator, seeded


def own_randomness() -> AbstractContextManager[None]:
    """Return a context in which torch's generator is seeded by its present seed and a key.

    Later draws are the same whatever is drawn within, so the layers that clients share do not
    depend on how many cells a client holds.
    """
    # The key is distinct from those of the core, the clients and the methods.
    return seeded(generator(torch.initial_seed(), 0, 0, 7).initial_seed())


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class STIDOptions(CheckedOptions):
    """Settings of STID; the defaults are as in the released code.

    Attributes:
        embed_size: width of the window's embedding.
        identity_size: width of each identity: of the cell, the time of day and the day.
        num_layers: residual layers.
        dropout: dropout rate inside a residual layer.
    """

    embed_size: Width = 32
    identity_size: Width = 32
    num_layers: Depth = 3
    dropout: ShareBelowOne = 0.15


class STID(SplitModel):
    """Residual layers on a window's embedding and the identities of its cell and time.

    Shapes:
        encoder: `(clients, batch, window.n_inputs)` to `(clients, batch, d)`, where d is the width
            of the window's embedding and the identities together. If a client holds several cells,
            the batch is times × cells, cells fastest.
        head: features to `(clients, batch, window.horizon)`.
    """

    name = "stid"
    summary = "embeds window, cell, time of day and day; residual layers (CIKM 2022)"
    Options = STIDOptions
    own = ("encoder.cell.",)
    of_cells = True

    def __init__(
        self, window: WindowSpec, options: STIDOptions | None = None, cells: Cells | None = None
    ) -> None:
        options = options or STIDOptions()
        encoder = STIDEncoder(window, options, cells)
        super().__init__(encoder, ClientLinear(encoder.size, window.horizon))


class STIDEncoder(nn.Module):
    """Embeddings and residual layers; `size` is the width of the features."""

    def __init__(self, window: WindowSpec, options: STIDOptions, cells: Cells | None) -> None:
        super().__init__()
        width = options.identity_size
        # Calendar inputs for the time of day come first.
        n_times = min(CALENDAR_INPUTS[window.calendar], CALENDAR_INPUTS["day"])
        if not n_times:
            log.warning("stid: the windows have no calendar, so times of day have no identity")
        self.sizes = [window.n_readings, n_times, window.n_known - n_times]
        self.series = ClientLinear(window.n_inputs, options.embed_size)
        self.cell = CellIdentity(width) if cells is None else CellIdentities(cells.n, width)
        self.time = TimeOfDay(window.period, width) if n_times else None
        self.day = DayIdentity(self.sizes[-1], width) if self.sizes[-1] else None
        parts = (self.cell, self.time, self.day)
        self.size = options.embed_size + width * sum(part is not None for part in parts)
        self.layers = nn.Sequential(
            *(ResidualLayer(self.size, options.dropout) for _ in range(options.num_layers))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map `(clients, batch, n_inputs)` to `(clients, batch, size)`."""
        _, times, days = x.split(self.sizes, dim=-1)
        parts = [self.series(x), self.cell(x.shape[1])]
        if self.time is not None:
            parts.append(self.time(times))
        if self.day is not None:
            parts.append(self.day(days))
        features: Tensor = self.layers(torch.cat(parts, dim=-1))
        return features


class CellIdentity(Stacked):
    """The vector of a client's only cell."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = _xavier(1, width)

    def forward(self, rows: int) -> Tensor:
        """Return `(clients, rows, width)`."""
        return self.weight.repeat(1, rows, 1)


class CellIdentities(Stacked):
    """A vector for each cell that a client holds; clients may hold fewer than the table has.

    All layers after it are drawn as with a single cell, so what clients share does not depend on
    their numbers of cells.
    """

    held: Tensor

    def __init__(self, n_cells: int, width: int) -> None:
        super().__init__()
        self.weight = _xavier(1, width)
        if n_cells > 1:
            with own_randomness():
                self.weight = _xavier(n_cells, width)
        self.register_buffer("held", torch.tensor([n_cells]))

    def forward(self, rows: int) -> Tensor:
        """Return `(clients, rows, width)`; the rows repeat the cells in order."""
        n = int(self.held[0])
        return self.weight[:, :n].repeat(1, rows // n, 1)


class TimeOfDay(Stacked):
    """A vector for each slot of the day, located by the sine and cosine of a daily cycle."""

    def __init__(self, slots: int, width: int) -> None:
        super().__init__()
        self.weight = _xavier(slots, width)

    def forward(self, calendar: Tensor) -> Tensor:
        """Map `(clients, batch, 2 or more)` to `(clients, batch, width)`."""
        return by_key(self.weight, self.slot(calendar))

    def slot(self, calendar: Tensor) -> Tensor:
        """Return `(clients, batch)` slots of the day, 0 at midnight."""
        slots = self.weight.shape[1]
        turn = torch.atan2(calendar[..., 0], calendar[..., 1]) / (2 * math.pi)
        return (turn * slots + 1e-2).floor().long() % slots  # The margin is for rounding errors.


class DayIdentity(Stacked):
    """A vector for each indicator of the kind of day; vectors of true indicators are added."""

    def __init__(self, n_indicators: int, width: int) -> None:
        super().__init__()
        self.weight = _xavier(n_indicators, width)

    def forward(self, indicators: Tensor) -> Tensor:
        """Map `(clients, batch, n_indicators)` to `(clients, batch, width)`."""
        return torch.bmm(indicators, self.weight)


class ResidualLayer(nn.Module):
    """Two linear layers with ReLU and dropout between them, and a residual connection."""

    def __init__(self, size: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second = ClientLinear(size, size), ClientLinear(size, size)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """Map `(clients, batch, size)` to the same shape."""
        hidden = F.dropout(F.relu(self.first(x)), self.dropout, self.training)
        return x + self.second(hidden)


def _xavier(rows: int, width: int) -> nn.Parameter:
    return uniform(math.sqrt(6 / (rows + width)), rows, width)

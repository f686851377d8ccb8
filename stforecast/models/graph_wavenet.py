"""Graph WaveNet: dilated gated convolutions in time, diffusion over given and learned graphs.

Wu, Pan, Long, Jiang, Zhang: Graph WaveNet for Deep Spatial-Temporal Graph Modeling, IJCAI 2019,
arXiv 1906.00121. Sizes and dropout are as in the released code for METR-LA.

It reads all cells of a time at once, so a client must hold several: `--clients` assigns them, and
`--method central` pools all. A client's graph has its own cells only; roads to other clients are
cut, and their number is logged. It keeps its cells' embeddings and roads (`SplitModel.own`) and
shares the other layers.

A client of a single cell is refused. To train it, a federation of cells would have to exchange, in
every layer of every forward pass, the hidden states of each cell's neighbours over the window,
which reveal as much as their recent readings, and in training the gradients of these states. The
self-adaptive graph needs the states of all cells, not only of neighbours, and a server that holds
every cell's embeddings.

Differences from the released code:

- Transition matrices and the self-adaptive one multiply as printed, `P X` (Eq. 4 to 6); the code
  has `Pᵀ X`.
- Parts that do not reach the output are left out: the residual convolutions, which the code does
  not call, and the graph convolution and normalisation of the last layer. They are 15,712 of its
  309,400 parameters on METR-LA.
- The calendar, periodic values and further lags of a window are channels with the same value at
  every step; the code gives each step its own time of day.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from data_prep.base.errors import InputError, Words
from stforecast.data.clients import Cells
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.options import CheckedOptions, Depth, ShareBelowOne, Width
from stforecast.federated.core.population import PerClient, SplitModel
from stforecast.models.stid import own_randomness


@dataclass(frozen=True)
class GraphWaveNetOptions(CheckedOptions):
    """Settings of Graph WaveNet; the defaults are as in the released code.

    Attributes:
        channels: width of the residual path.
        skip_channels: width of the sum that the head reads.
        end_channels: width of the head's hidden layer.
        blocks: number of blocks; 4 blocks of 2 layers have a receptive field of 13 steps.
        layers: layers of a block, with dilations 1, 2, 4, …
        diffusion_steps: steps of diffusion along each graph.
        embed_size: width of each cell's two embeddings, from which the self-adaptive graph is
            computed.
        dropout: dropout rate on the outputs of the graph convolutions.
        graph: `adaptive`: only the self-adaptive graph; `both`: also the cube's roads, as in the
            paper's best results.
    """

    channels: Width = 32
    skip_channels: Width = 256
    end_channels: Width = 512
    blocks: Depth = 4
    layers: Depth = 2
    diffusion_steps: Depth = 2
    embed_size: Width = 10
    dropout: ShareBelowOne = 0.3
    graph: Literal["adaptive", "both"] = "adaptive"

    @property
    def dilations(self) -> tuple[int, ...]:
        """Dilation of each layer's convolution, in steps."""
        return tuple(2**layer for _ in range(self.blocks) for layer in range(self.layers))


class GraphWaveNet(SplitModel):
    """Graph WaveNet: forecasts of all cells of a client at once, by their roads if asked.

    `closeness` is the sequence; other inputs are added to every step.

    Shapes:
        encoder: `(clients, batch * cells, window.n_inputs)`, cells fastest, to the same rows of
            `skip_channels` features.
        head: features to `(1, batch * cells, window.horizon)`.
    """

    name = "graph_wavenet"
    summary = "dilated convolutions in time, diffusion over a client's cells (IJCAI 2019)"
    Options = GraphWaveNetOptions
    own = tuple(f"encoder.module.{name}" for name in ("source", "target", "graphs", "held"))
    of_cells = True

    def __init__(
        self,
        window: WindowSpec,
        options: GraphWaveNetOptions | None = None,
        cells: Cells | None = None,
    ) -> None:
        if cells is None:
            raise InputError(
                "graph_wavenet reads several cells at once, but each client is one cell; ",
                Words("group cells by {clients}, or use {method:central} or another {model}"),
            )
        options = options or GraphWaveNetOptions()
        encoder = GraphEncoder(window, options, cells)
        head = nn.Sequential(
            ClientLinear(options.skip_channels, options.end_channels),
            nn.ReLU(),
            ClientLinear(options.end_channels, window.horizon),
        )
        super().__init__(PerClient(encoder), head)


class GraphEncoder(nn.Module):
    """All layers up to the head, for one client; hidden states are `(batch, steps, cells, c)`.

    The client may hold fewer cells, `held`, than the embeddings and graphs have.
    """

    graphs: Tensor
    held: Tensor

    def __init__(self, window: WindowSpec, options: GraphWaveNetOptions, cells: Cells) -> None:
        super().__init__()
        self.closeness, self.newest_first = window.closeness, window.newest_first
        dilations = options.dilations
        self.reach = 1 + sum(dilations)
        if not 0 < window.closeness <= self.reach:
            raise InputError(
                f"graph_wavenet reads 1 to {self.reach} steps, but closeness is "
                f"{window.closeness}; change it, or blocks and layers"
            )
        graphs = transitions(cells, roads=options.graph == "both")
        self.register_buffer("graphs", graphs)
        self.register_buffer("held", torch.tensor(cells.n))
        with own_randomness():
            self.source = nn.Parameter(torch.randn(cells.n, options.embed_size))
            self.target = nn.Parameter(torch.randn(options.embed_size, cells.n))
        self.start = nn.Linear(1 + window.n_inputs - window.closeness, options.channels)
        sizes = (options.channels, options.skip_channels)
        self.gates = nn.ModuleList(GatedLayer(*sizes, dilation) for dilation in dilations)
        self.diffusions = nn.ModuleList(
            Diffusion(options.channels, len(graphs) + 1, options.diffusion_steps, options.dropout)
            for _ in dilations[1:]
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map `(batch * cells, n_inputs)` to `(batch * cells, skip_channels)`."""
        n = int(self.held)
        hidden = self.start(self.sequence(x, n))
        # The self-adaptive graph, whose rows add up to 1 (Eq. 5).
        adaptive = F.relu(self.source[:n] @ self.target[:, :n]).softmax(dim=1)
        graphs = [*self.graphs[:, :n, :n], adaptive]
        gated, skips = self.gates[0](hidden)
        for gates, diffuse in zip(self.gates[1:], self.diffusions, strict=True):
            hidden = diffuse(gated, hidden, graphs)
            gated, skip = gates(hidden)
            skips = skips + skip
        return F.relu(skips).flatten(0, 1)

    def sequence(self, x: Tensor, n_cells: int) -> Tensor:
        """Reshape rows to `(batch, reach, cells, channels)`, oldest step first, zero-padded."""
        values, further = x[:, : self.closeness], x[:, self.closeness :]
        if self.newest_first:
            values = values.flip(1)
        further = further[:, None].expand(-1, self.closeness, -1)
        steps = torch.cat([values[..., None], further], dim=-1)
        steps = F.pad(steps, (0, 0, self.reach - self.closeness, 0))
        return steps.unflatten(0, (-1, n_cells)).transpose(1, 2)


class GatedLayer(nn.Module):
    """Gated convolution of two steps (Eq. 2 and 3), and its part of the skip path."""

    def __init__(self, channels: int, skip_channels: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.filter = nn.Linear(2 * channels, channels)
        self.gate = nn.Linear(2 * channels, channels)
        self.skip = nn.Linear(channels, skip_channels)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return gated states, `dilation` steps fewer, and `(batch, cells, skip_channels)`."""
        both = torch.cat([hidden[:, : -self.dilation], hidden[:, self.dilation :]], dim=-1)
        gated = torch.tanh(self.filter(both)) * torch.sigmoid(self.gate(both))
        return gated, self.skip(gated[:, -1])


class Diffusion(nn.Module):
    """Graph convolution (Eq. 6), residual connection and batch normalisation."""

    def __init__(self, channels: int, n_graphs: int, order: int, dropout: float) -> None:
        super().__init__()
        self.order = order
        self.mix = nn.Linear(channels * (1 + n_graphs * order), channels)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, gated: Tensor, hidden: Tensor, graphs: list[Tensor]) -> Tensor:
        """Return `(batch, steps, cells, channels)`, with as many steps as `gated`."""
        reached = [gated]
        for graph in graphs:
            states = gated
            for _ in range(self.order):
                states = graph @ states
                reached.append(states)
        mixed = self.dropout(self.mix(torch.cat(reached, dim=-1)))
        total = mixed + hidden[:, -gated.shape[1] :]
        return self.norm(total.flatten(0, 2)).view_as(total)


def transitions(cells: Cells, *, roads: bool) -> Tensor:
    """Return forward and backward transition matrices `(2, n, n)`; `(0, n, n)` without `roads`.

    >>> transitions(Cells(2, np.array([[1.0, 3.0], [0.0, 1.0]])), roads=True).tolist()
    [[[0.25, 0.75], [0.0, 1.0]], [[1.0, 0.0], [0.75, 0.25]]]
    """
    if not roads:
        return torch.zeros(0, cells.n, cells.n)
    if cells.adjacency is None:
        raise InputError(
            "graph is both, but the data have no adjacency; ",
            Words("prepare them with one, or set {graph:adaptive}"),
        )
    both = np.stack([cells.adjacency, cells.adjacency.T]).astype(np.float64)
    total = both.sum(axis=-1, keepdims=True)
    return torch.from_numpy(both / np.where(total > 0, total, 1.0)).float()

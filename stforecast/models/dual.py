"""Parts of the dual models: recurrent networks over both parts of a window, and a head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from data_prep.errors import InputError
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.layers import ClientLinear, side_by_side


class DualEncoder(nn.Module):
    """Last hidden states over the closeness and over the periodic window, side by side.

    Args:
        window: input steps; the network of `closeness` or `periods` is left out if it is 0.
        make: builds a recurrent network `(clients, batch, steps, 1)` to `(clients, batch, hidden)`.
        reader: name of the model, for the error.

    Raises:
        InputError: if the windows have other inputs.
    """

    def __init__(self, window: WindowSpec, make: Callable[[], nn.Module], reader: str) -> None:
        super().__init__()
        if window.n_inputs > window.closeness + window.periods:
            raise InputError(
                f"{reader} reads closeness and periods only; leave out extra_lags, calendar and "
                "holidays, or take --model mlp"
            )
        self.sizes = [size for size in (window.closeness, window.periods) if size]
        self.n_parts = len(self.sizes)
        self.closeness = make() if window.closeness else None
        self.periodic = make() if window.periods else None

    def forward(self, x: Tensor) -> Tensor:
        """Map `(clients, batch, inputs)` to `(clients, batch, parts * hidden)`."""
        parts = x.unsqueeze(-1).split(self.sizes, dim=2)
        networks = [n for n in (self.closeness, self.periodic) if n is not None]
        return side_by_side(networks, parts)


class FusionHead(nn.Module):
    """Fully connected layer on the sum of the parts, or on all of them.

    Attributes:
        in_features: size of the features.
    """

    def __init__(
        self, n_parts: int, hidden_size: int, fusion: Literal["sum", "concat"], horizon: int
    ) -> None:
        super().__init__()
        self.in_features = hidden_size * n_parts
        n_summed = n_parts if fusion == "sum" else 1
        self.linear = ClientLinear(self.in_features // n_summed, horizon, n_summed)

    def forward(self, features: Tensor) -> Tensor:
        """Map `(clients, batch, features)` to `(clients, batch, horizon)`."""
        return self.linear(features)

"""A transformer on patches of the window: the encoder and the decoder of FeDPM's released code.

Deng et al.: Discrete Prototypical Memories for Federated Time Series Foundation Models, 2026, arXiv
2604.04475, code under MIT (`lib/models/Encoder_and_Retrieval.py`, `lib/models/decoder.py`,
`transformer_args.yaml`); sizes, initial values and dropout are its defaults. Layers are as in
Vaswani et al., NeurIPS 2017, normalised after each residual sum; tokens are as in PatchTST (Nie
et al., ICLR 2023) without overlap.

The encoder cuts the readings, oldest first, into patches and repeats the last one to fill the last
patch. Its features are one vector for each patch, side by side, and `SplitModel.token_size` wide.
Only the encoder has dropout. The encoder's positions are learned, the decoder's are sines
and cosines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Le
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from data_prep.base.errors import InputError, Words
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.layers import ClientDropout, ClientLayerNorm, ClientLinear, Stacked
from stforecast.federated.core.options import CheckedOptions, Depth, ShareBelowOne, Width
from stforecast.federated.core.population import SplitModel


@dataclass(frozen=True)
class PatchTransformerOptions(CheckedOptions):
    """Settings of the transformer on patches; the defaults are as in FeDPM's code.

    Attributes:
        patch: readings of a patch.
        width: width of a patch's vector; a multiple of the numbers of heads.
        encoder_layers: layers of the encoder.
        encoder_heads: heads of each of its layers.
        encoder_units: hidden units of each of its layers.
        decoder_layers: layers of the decoder.
        decoder_heads: heads of each of its layers.
        decoder_units: hidden units of each of its layers.
        dropout: dropout rate of the encoder.
    """

    patch: Annotated[PositiveInt, Le(1000)] = 4
    width: Width = 64
    encoder_layers: Depth = 2
    encoder_heads: Depth = 8
    encoder_units: Width = 128
    decoder_layers: Depth = 4
    decoder_heads: Depth = 4
    decoder_units: Width = 256
    dropout: ShareBelowOne = 0.1

    def __post_init__(self) -> None:
        """Refuse a width that the heads cannot share."""
        super().__post_init__()
        for heads in (self.encoder_heads, self.decoder_heads):
            if self.width % heads or self.width % 2:
                raise InputError(
                    f"width is {self.width}, which must be even and a multiple of both numbers of "
                    f"heads, {self.encoder_heads} and {self.decoder_heads}"
                )


class PatchTransformer(SplitModel):
    """A transformer that encodes patches, and one that decodes their vectors.

    Shapes:
        encoder: `(clients, batch, window.n_inputs)` to `(clients, batch, patches * width)`.
        head: features to `(clients, batch, window.horizon)`.
    """

    name = "patch_transformer"
    summary = "transformer on patches of the window (FeDPM)"
    Options = PatchTransformerOptions

    def __init__(self, window: WindowSpec, options: PatchTransformerOptions | None = None) -> None:
        options = options or PatchTransformerOptions()
        encoder = PatchEncoder(window, options)
        super().__init__(encoder, PatchDecoder(encoder.n_patches, window.horizon, options))
        self.token_size = options.width


class PatchEncoder(nn.Module):
    """Patches, their learned positions, and layers with dropout."""

    def __init__(self, window: WindowSpec, options: PatchTransformerOptions) -> None:
        super().__init__()
        if window.n_known:
            raise InputError(
                "patch_transformer reads readings only; ",
                Words(
                    "leave out calendar, holidays, inputs, static and events, or take {model:mlp}"
                ),
            )
        lags = window.all_lags
        self.order = torch.tensor(sorted(range(len(lags)), key=lambda place: -lags[place]))
        self.patch, self.n_patches = options.patch, math.ceil(len(lags) / options.patch)
        self.embedding = ClientLinear(options.patch, options.width)
        self.positions = Positions(self.n_patches, options.width)
        self.dropout = dropout(options.dropout)
        sizes = options.width, options.encoder_heads, options.encoder_units, options.dropout
        self.layers = nn.Sequential(*(Layer(*sizes) for _ in range(options.encoder_layers)))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(clients, batch, inputs)` to `(clients, batch, patches * width)`."""
        series = x[..., self.order]
        missing = self.n_patches * self.patch - len(self.order)
        series = torch.cat([series, series[..., -1:].expand(*x.shape[:2], missing)], dim=-1)
        rows = series.reshape(len(x), -1, self.patch)
        tokens = self.embedding(rows).unflatten(1, (-1, self.n_patches))
        encoded: Tensor = self.layers(self.dropout(self.positions(tokens)))
        return encoded.flatten(2)


class PatchDecoder(nn.Module):
    """Layers on the vectors of the patches, and one linear map of all of them to the horizon."""

    def __init__(self, n_patches: int, horizon: int, options: PatchTransformerOptions) -> None:
        super().__init__()
        self.in_features = n_patches * options.width
        self.n_patches = n_patches
        sizes = options.width, options.decoder_heads, options.decoder_units, 0.0
        self.layers = nn.Sequential(*(Layer(*sizes) for _ in range(options.decoder_layers)))
        self.linear = ClientLinear(self.in_features, horizon)
        for parameter in self.parameters():
            if parameter.ndim > 2:  # A client axis and a matrix.
                nn.init.xavier_uniform_(parameter[0])

    def forward(self, features: Tensor) -> Tensor:
        """Map `(clients, batch, patches * width)` to `(clients, batch, horizon)`."""
        tokens = features.unflatten(-1, (self.n_patches, -1))
        waves = sines(self.n_patches, tokens.shape[-1]).to(tokens)
        decoded: Tensor = self.linear(self.layers(tokens + waves).flatten(2))
        return decoded


class Positions(Stacked):
    """A learned vector of each place, added to the token there."""

    def __init__(self, n_tokens: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(1, n_tokens, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Map `(clients, batch, tokens, width)` to the same shape."""
        return tokens + self.weight[:, None]


def sines(n: int, width: int) -> Tensor:
    """Return the positional encoding `(n, width)` of Vaswani et al., section 3.5.

    >>> sines(2, 2)
    tensor([[0.0000, 1.0000],
            [0.8415, 0.5403]])
    """
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
    angles = torch.arange(n)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def dropout(p: float) -> nn.Module:
    """Return a layer that drops a share of the values, or for 0 one that takes no time."""
    return ClientDropout(p) if p else nn.Identity()


class Layer(nn.Module):
    """Attention among a sample's tokens, then a perceptron of each; both added and normalised."""

    def __init__(self, width: int, n_heads: int, units: int, p: float) -> None:
        super().__init__()
        self.n_heads, self.drop = n_heads, dropout(p)
        self.queries_keys_values = ClientLinear(width, 3 * width)
        self.mixed = ClientLinear(width, width)
        self.hidden, self.output = ClientLinear(width, units), ClientLinear(units, width)
        self.after_attention, self.after_units = ClientLayerNorm(width), ClientLayerNorm(width)
        nn.init.xavier_uniform_(self.queries_keys_values.weight[0])
        for linear in (self.queries_keys_values, self.mixed):
            nn.init.zeros_(linear.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map `(clients, batch, tokens, width)` to the same shape."""
        rows = tokens.flatten(1, 2)
        rows = self.after_attention(rows + self.drop(self.attention(rows, tokens.shape[2])))
        units = self.drop(F.relu(self.hidden(rows)))
        rows = self.after_units(rows + self.drop(self.output(units)))
        return rows.view(tokens.shape)

    def attention(self, rows: Tensor, n_tokens: int) -> Tensor:
        """Return what each token `(clients, batch * tokens, width)` reads from those around it."""
        parts = self.queries_keys_values(rows)
        parts = parts.view(len(rows), -1, n_tokens, 3, self.n_heads, rows.shape[-1] // self.n_heads)
        queries, keys, values = parts.permute(3, 0, 1, 4, 2, 5)
        weights = (queries @ keys.mT / math.sqrt(queries.shape[-1])).softmax(-1)
        return self.mixed((self.drop(weights) @ values).transpose(2, 3).reshape(rows.shape))

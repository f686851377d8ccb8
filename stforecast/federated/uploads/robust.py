"""Robust aggregation: what the server makes of uploads of which some may be of bad will.

The guard stands before a method's `aggregate`, so every method has it. Where a method joins uploads
to one, each becomes their robust centre, and so do all their means, whatever the weights (which
bad will could choose). Where the server keeps uploads apart (`Method.keeps_apart`: prototypes mixed
for each receiver, models grouped into clusters) that would make all clients alike; there uploads
are only brought back to where others are:

=========  ====================================  ==============================================
           joined by the method                  kept apart
=========  ====================================  ==============================================
`median`   coordinate-wise median                outlying uploads become it, others stay
`trimmed`  coordinate-wise trimmed mean          coordinates are limited to the trimmed range
`clip`     drawn towards the median, until no further from it than the median client
=========  ====================================  ==============================================

Of prototypes, a key's statistics are those of the clients that hold it, as the integer or boolean
tensor of the same keys says that is sent with them. Integers stay as they are.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning, ICML 2018, arXiv 1803.01498
(median, trimmed mean). Karimireddy, He, Jaggi: Learning from History for Byzantine Robust
Optimization, ICML 2021, arXiv 2012.10333 (clipping around a centre; here the median).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Lt
from pydantic import NonNegativeFloat
from torch import Tensor

from stforecast.federated.options import CheckedOptions
from stforecast.federated.uploads.payload import Payload

OUTLYING = 3.0
"""How many times further from the median than the median client an outlying one is."""


@dataclass(frozen=True)
class Robust(CheckedOptions):
    """How uploads are guarded; by default they are not.

    Attributes:
        robust: none, median, trimmed (mean) or clip (distance to the median). It bears fewer than
            half of the clients, or robust_trim. See `stforecast.federated.uploads.robust`.
        robust_trim: share of the clients that trimmed leaves out at either end.
    """

    robust: Literal["none", "median", "trimmed", "clip"] = "none"
    robust_trim: Annotated[NonNegativeFloat, Lt(0.5)] = 0.2

    def guard(self, uploads: Payload, apart: bool = False, model: Collection[str] = ()) -> Payload:
        """The uploads as the method shall see them.

        Args:
            uploads: each `(clients, …)`.
            apart: whether the method keeps them apart.
            model: names of the model's own tensors, which all clients hold whole.
        """
        if self.robust == "none":
            return uploads
        parts = {
            name: _Part(t, None if name in model else _held(t, uploads))
            for name, t in uploads.items()
            if t.is_floating_point()
        }
        if not parts:
            return uploads
        if self.robust == "clip" or (self.robust == "median" and apart):
            guarded = self._drawn(parts)
        elif apart:
            guarded = {name: part.limited(self.robust_trim) for name, part in parts.items()}
        else:
            trim = 0.5 if self.robust == "median" else self.robust_trim
            guarded = {
                name: part.filled(part.trimmed_mean(trim)[None]) for name, part in parts.items()
            }
        return {**uploads, **guarded}

    def _drawn(self, parts: dict[str, _Part]) -> Payload:
        """Uploads drawn to their median: all that are far by `clip`, else the outlying wholly."""
        centres = {name: part.trimmed_mean(0.5) for name, part in parts.items()}
        squares = torch.stack([p.square_to(centres[name]) for name, p in parts.items()]).sum(0)
        values = torch.stack([p.count() for p in parts.values()]).sum(0)
        distance = (squares / values.clamp(min=1)).sqrt()
        usual = _Part(distance[:, None], None).trimmed_mean(0.5)
        if self.robust == "clip":
            kept = (usual / distance.clamp(min=torch.finfo(distance.dtype).tiny)).clamp(max=1)
        else:
            kept = (distance <= OUTLYING * usual).to(distance)
        return {
            name: part.filled(
                torch.lerp(centres[name], part.values, kept.view(-1, 1, 1).to(part.values))
            )
            for name, part in parts.items()
        }


class _Part:
    """One tensor of the uploads as `(clients, keys, values)`, and who holds which key.

    Args:
        tensor: `(clients, …)`; with `held`, `(clients, keys, …)`.
        held: `(clients, keys)`; None where there are no keys.
    """

    def __init__(self, tensor: Tensor, held: Tensor | None) -> None:
        n = len(tensor)
        self._tensor = tensor
        self._held = tensor.new_ones(n, 1, dtype=torch.bool) if held is None else held
        self.values = tensor.reshape(n, self._held.shape[1], -1)

    def count(self) -> Tensor:
        """Values that each client holds, `(clients,)`."""
        return self._held.sum(1) * self.values.shape[2]

    def square_to(self, centre: Tensor) -> Tensor:
        """Squared distance of each client to `centre` `(keys, values)`, over the keys it holds."""
        return ((self.values - centre).double().square().sum(2) * self._held).sum(1)

    def trimmed_mean(self, trim: float) -> Tensor:
        """Coordinate-wise mean without the extreme clients, `(keys, values)`; 0.5: the median."""
        ordered, low, high = self._ordered(trim)
        place = torch.arange(len(ordered), device=low.device)[:, None]
        used = (place >= low) & (place <= high)
        total = torch.where(used[..., None], ordered, 0).sum(0)
        return total / used.sum(0).clamp(min=1)[:, None]

    def limited(self, trim: float) -> Tensor:
        """The tensor with each coordinate limited to what the trimmed mean is made of."""
        ordered, *ends = self._ordered(trim)
        width = ordered.shape[2]
        low, high = (ordered.gather(0, e[None, :, None].expand(1, -1, width)) for e in ends)
        return self.filled(self.values.clamp(low, high))

    def _ordered(self, trim: float) -> tuple[Tensor, Tensor, Tensor]:
        """Holders' values in order of size, and the first and last place to keep `(keys,)`."""
        holders = self._held.sum(0)
        most = (holders - 1).clamp(min=0)
        cut = torch.minimum((trim * holders).long(), most // 2)
        ordered = self.values.masked_fill(~self._held[..., None], torch.inf).sort(0).values
        return ordered, cut, (most - cut).clamp(min=0)

    def filled(self, values: Tensor) -> Tensor:
        """The tensor with other values `(clients or 1, keys, values)` where they are held."""
        new = torch.where(self._held[..., None], values, self.values)
        return new.view_as(self._tensor).to(self._tensor)


def _held(t: Tensor, uploads: Payload) -> Tensor | None:
    """Who holds which key of prototypes, by the counts or flags that are sent with them."""
    for flags in uploads.values():
        if not flags.is_floating_point() and flags.ndim == 2 and flags.shape == t.shape[:2]:
            return flags > 0
    return None

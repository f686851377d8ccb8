"""Robust aggregation of uploads, some of which may be Byzantine.

The guard is applied before a method's `aggregate`. Which of its rules protect a method is measured,
and declared in `Method.attacked`; others are refused. If a method averages uploads, each is
replaced by their robust aggregate, so any weighted mean of them is that aggregate, too (Byzantine
clients could choose the weights). If the server uses each upload by itself (`Upload.apart`:
prototypes mixed for each receiver, models grouped into clusters), that would make all clients
equal. In this case, only outlying values are changed:

=========  ====================================  ==============================================
           averaged by the method                kept apart
=========  ====================================  ==============================================
`median`   coordinate-wise median                outlying uploads are replaced by the median
`trimmed`  coordinate-wise trimmed mean          coordinates are limited to the trimmed range
`clip`     moved towards the median, to at most the distance of the median client
`drop`     clients with outlying uploads count as absent in this round
=========  ====================================  ==============================================

An upload is outlying if its distance to the median is more than three times that of the median
client. `drop` is the only rule for sums over a client's samples (`Upload.of_samples`), such as
histograms: they grow with the client, so distances are those of the means over its samples, and
the median of bins that few clients fill is 0. What is left are sums of whole clients, so matrices
of second moments stay positive semi-definite, and bins of one histogram add up as those of others.

For prototypes, a key's statistics are over the clients that hold it, given by the integer or
boolean tensor of the same keys that is sent with them. Integers are not changed.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning, ICML 2018, arXiv 1803.01498
(median, trimmed mean). Karimireddy, He, Jaggi: Learning from History for Byzantine Robust
Optimization, ICML 2021, arXiv 2012.10333 (clipping around a centre; here the median). Blanchard, El
Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries, NeurIPS 2017, arXiv 1703.02757
(leaving out whole uploads by their distances; here those to the median).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import torch
from annotated_types import Lt
from pydantic import NonNegativeFloat
from torch import Tensor

from data_prep.base.errors import InputError, Words
from stforecast.federated.core.options import CheckedOptions, ReadIf
from stforecast.federated.core.tensors import Payload, with_axes

if TYPE_CHECKING:
    from stforecast.federated.core.method import Method

Rule = Literal["none", "median", "trimmed", "clip", "drop"]

RULES = get_args(Rule)[1:]
"""Names of all rules of robust aggregation."""


@dataclass(frozen=True)
class Robust(CheckedOptions):
    """Settings of robust aggregation, by default off.

    Attributes:
        robust: robust aggregation of uploads: none, median, trimmed (mean), clip (distance to the
            median) or drop (clients far from the median). Fewer than half of the clients may be
            Byzantine; with trimmed, at most a share robust_trim. Rules that do a method harm, or
            were not measured with it, are refused. See `stforecast.federated.uploads.robust`.
        robust_trim: share of the clients that trimmed leaves out at each end.
    """

    robust: Rule = "none"
    robust_trim: Annotated[
        NonNegativeFloat, Lt(0.5), ReadIf("robust is trimmed", lambda s: s["robust"] == "trimmed")
    ] = 0.2

    def check(self, method: type[Method]) -> None:
        """Refuse a rule that was not measured with the method, or does harm.

        A subclass may send something else, so it does not inherit `Method.attacked`.
        """
        guards = method.attacked.guards
        if self.robust not in ("none", *guards):
            others = f"choose {' or '.join(guards)}" if guards else "leave it out"
            raise InputError(
                Words("{robust}", robust=self.robust),
                f" cannot protect {method.name}: {method.attacked.unguarded}; {others}",
            )

    def guard(
        self, uploads: Payload, *, apart: bool = False, model: Collection[str] = ()
    ) -> Payload:
        """Return the uploads `(clients, …)` for the method's aggregation.

        Args:
            uploads: tensors by name.
            apart: whether the method uses each upload by itself.
            model: names of the model's own tensors, which all clients have in full.
        """
        parts = _parts(uploads, model) if self.robust in ("median", "trimmed", "clip") else {}
        if not parts:
            return uploads
        if self.robust == "clip" or (self.robust == "median" and apart):
            guarded = self._moved_to_median(parts)
        elif apart:
            guarded = {name: part.limited(self.robust_trim) for name, part in parts.items()}
        else:
            trim = 0.5 if self.robust == "median" else self.robust_trim
            guarded = {
                name: part.filled(part.trimmed_mean(trim)[None]) for name, part in parts.items()
            }
        return {**uploads, **guarded}

    def kept(
        self, uploads: Payload, model: Collection[str] = (), samples: Tensor | None = None
    ) -> Tensor:
        """Return the indices of the clients that are not outlying.

        With `samples` `(clients,)`, each upload is a sum over them; None is for means.
        """
        if samples is not None:
            uploads = {n: t / with_axes(samples.to(t.device), t.ndim) for n, t in uploads.items()}
        parts = _parts(uploads, model)
        if not parts:
            return torch.arange(len(next(iter(uploads.values()), ())))
        _, distance, usual = _distances(parts)
        return (distance <= 3 * usual).nonzero().flatten().cpu()

    def _moved_to_median(self, parts: dict[str, _Part]) -> Payload:
        """Move uploads to their median: far ones partly for `clip`, else outlying ones fully."""
        centres, distance, usual = _distances(parts)
        if self.robust == "clip":
            kept = (usual / distance.clamp(min=torch.finfo(distance.dtype).tiny)).clamp(max=1)
        else:
            kept = (distance <= 3 * usual).to(distance)
        return {
            name: part.filled(
                torch.lerp(centres[name], part.values, kept.view(-1, 1, 1).to(part.values))
            )
            for name, part in parts.items()
        }


def _parts(uploads: Payload, model: Collection[str]) -> dict[str, _Part]:
    return {
        name: _Part(t, None if name in model else _held(t, uploads))
        for name, t in uploads.items()
        if t.is_floating_point()
    }


def _distances(parts: dict[str, _Part]) -> tuple[Payload, Tensor, Tensor]:
    """Return the median of each part, the clients' distances `(clients,)`, and their median."""
    centres = {name: part.trimmed_mean(0.5) for name, part in parts.items()}
    squares = torch.stack(
        [
            ((p.values - centres[name]).double().square().sum(2) * p.held).sum(1)
            for name, p in parts.items()
        ]
    ).sum(0)
    values = torch.stack([p.count() for p in parts.values()]).sum(0)
    distance = (squares / values.clamp(min=1)).sqrt()
    return centres, distance, _Part(distance[:, None], None).trimmed_mean(0.5)[0]


class _Part:
    """A tensor of the uploads as `(clients, keys, values)`, and the clients that hold each key.

    It is given as `(clients, …)`, or with `held` `(clients, keys)` as `(clients, keys, …)`.
    """

    def __init__(self, tensor: Tensor, held: Tensor | None) -> None:
        n = len(tensor)
        self._tensor = tensor
        self.held = tensor.new_ones(n, 1, dtype=torch.bool) if held is None else held
        self.values = tensor.reshape(n, self.held.shape[1], -1)

    def count(self) -> Tensor:
        """Return the number of values that each client holds, `(clients,)`."""
        return self.held.sum(1) * self.values.shape[2]

    def trimmed_mean(self, trim: float) -> Tensor:
        """Return the coordinate-wise trimmed mean `(keys, values)`; for 0.5, the median.

        That of a key without a holder is 0.
        """
        ordered, low, high = self._ordered(trim)
        place = torch.arange(len(ordered), device=low.device)[:, None]
        used = (place >= low) & (place <= high) & self.held.any(0)
        total = torch.where(used[..., None], ordered, 0).sum(0)
        return total / used.sum(0).clamp(min=1)[:, None]

    def limited(self, trim: float) -> Tensor:
        """Return the tensor with each coordinate limited to the range of the trimmed mean."""
        ordered, *ends = self._ordered(trim)
        width = ordered.shape[2]
        low, high = (ordered.gather(0, e[None, :, None].expand(1, -1, width)) for e in ends)
        return self.filled(self.values.clamp(low, high))

    def _ordered(self, trim: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return sorted values of the holders, and the first and last index to keep `(keys,)`."""
        holders = self.held.sum(0)
        most = (holders - 1).clamp(min=0)
        cut = torch.minimum((trim * holders).long(), most // 2)
        ordered = self.values.masked_fill(~self.held[..., None], torch.inf).sort(0).values
        return ordered, cut, (most - cut).clamp(min=0)

    def filled(self, values: Tensor) -> Tensor:
        """Return the tensor with new values `(clients or 1, keys, values)` of held keys."""
        new = torch.where(self.held[..., None], values, self.values)
        return new.view_as(self._tensor).to(self._tensor)


def _held(t: Tensor, uploads: Payload) -> Tensor | None:
    """Return which client holds which key of prototypes, by the counts or flags sent with them."""
    for flags in uploads.values():
        if not flags.is_floating_point() and flags.ndim == 2 and flags.shape == t.shape[:2]:
            return flags > 0
    return None

"""Forecasting as a task of the federated core: masked errors, keyed by slot of the period."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import PositiveFloat
from torch import Tensor
from torch.nn import functional as F

from data_prep.base.errors import InputError
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import Windows
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.options import CheckedOptions, ReadIf
from stforecast.federated.core.tensors import Batch
from stforecast.metrics.interval import parse_levels


@dataclass(frozen=True)
class LossOptions(CheckedOptions):
    """Training loss; it decides whether a forecast is a mean, a median or quantiles.

    Attributes:
        loss: `mse`, squared error (FUELS, Eq. 14); `mae`, absolute error, common on METR-LA;
            `huber`, squared up to huber_delta and linear beyond, so that bursts of traffic weigh
            less; or `quantile`, the pinball loss of several quantiles at once.
        huber_delta: threshold of the Huber loss, in z-scores.
        quantiles: levels of the quantile loss and of the bounds of --intervals, in pairs around
            0.5, the forecast: 0.05,0.5,0.95 gives 90 % intervals.
    """

    loss: Literal["mse", "mae", "huber", "quantile"] = "mse"
    huber_delta: Annotated[
        PositiveFloat, ReadIf("loss is huber", lambda s: s["loss"] == "huber")
    ] = 0.5
    quantiles: Annotated[
        str,
        ReadIf(
            "loss is quantile or there are intervals",
            lambda s: s["loss"] == "quantile" or s["intervals"] != "none",
        ),
    ] = "0.05,0.5,0.95"

    def __post_init__(self) -> None:
        """Refuse an invalid list of quantiles."""
        super().__post_init__()
        parse_levels(self.quantiles)

    @property
    def levels(self) -> tuple[float, ...]:
        """Levels of the quantiles that a model forecasts; none if it forecasts a single value."""
        return parse_levels(self.quantiles) if self.loss == "quantile" else ()

    @property
    def n_outputs(self) -> int:
        """Number of outputs of a model for each target."""
        return len(self.levels) or 1


@dataclass(frozen=True)
class ForecastTask:
    """Predict `y` `(clients, batch, horizon)` where `mask` is True.

    A prediction is `(clients, batch, horizon)`, or `(clients, batch, horizon * levels)` for
    quantiles, with the levels of a step side by side; so any model becomes a quantile model with a
    wider head. Keys are the slots of the period.
    """

    n_keys: int
    options: LossOptions = LossOptions()
    window: WindowSpec = field(default_factory=WindowSpec)

    @property
    def n_outputs(self) -> int:
        """Number of outputs of a model: target steps, times the levels of quantiles."""
        return self.window.horizon * self.options.n_outputs

    def loss(self, prediction: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss of each client over its observed targets."""
        total, count = _summed(self._error(prediction, batch), batch["mask"], over=(1, 2))
        return total / count.clamp(min=1)

    def residual(self, prediction: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the error of each output, 0 where the target is missing, and whether it is known.

        Both are `(clients, batch, outputs)`; of quantiles, each level has the error of its step.
        """
        y, mask = batch["y"], batch["mask"]
        if levels := len(self.options.levels):
            y, mask = (t.repeat_interleave(levels, dim=-1) for t in (y, mask))
        return torch.where(mask, y - prediction, 0.0), mask

    def keys(self, batch: Batch) -> Tensor:
        """Return the slot of the period of each sample's first target."""
        return batch["slot"]

    def score(self, prediction: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the squared error and the number of observed targets of each sample.

        Quantiles are scored by the pinball loss, all other losses by the squared error, so that
        their rounds are comparable.
        """
        self._check(prediction, batch)
        error = self._error if self.options.levels else _squared_error
        return _summed(error(prediction, batch), batch["mask"], over=(2,))

    def _check(self, prediction: Tensor, batch: Batch) -> None:
        """Refuse a prediction of another shape, which might be repeated along an axis."""
        expected = (*batch["y"].shape[:-1], batch["y"].shape[-1] * self.options.n_outputs)
        if prediction.shape != expected:
            raise InputError(
                f"the model forecasts the shape {tuple(prediction.shape)}, expected {expected}: "
                "clients, samples, horizon × quantiles"
            )

    def _error(self, prediction: Tensor, batch: Batch) -> Tensor:
        """Return the training loss of each target, `(clients, batch, horizon)`."""
        self._check(prediction, batch)
        if self.options.levels:
            quantiles = prediction.unflatten(-1, (-1, len(self.options.levels)))
            return pinball_loss(quantiles, batch["y"], self.options.levels)
        if self.options.loss == "huber":
            y, delta = batch["y"], self.options.huber_delta
            return F.huber_loss(prediction, y, reduction="none", delta=delta)
        if self.options.loss == "mae":
            return (prediction - batch["y"]).abs()
        return _squared_error(prediction, batch)


def _summed(error: Tensor, mask: Tensor, over: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the sum over observed targets along some axes, and the number of them."""
    return torch.where(mask, error, 0.0).sum(over), mask.sum(over)


def _squared_error(prediction: Tensor, batch: Batch) -> Tensor:
    return (prediction - batch["y"]).square()


def pinball_loss(quantiles: Tensor, y: Tensor, levels: Sequence[float]) -> Tensor:
    """Compute the pinball loss, the mean over levels τ of max(τ (y - q), (τ - 1)(y - q)).

    The `quantiles` are `(…, levels)` of targets `(…)`. Koenker and Bassett: Regression Quantiles,
    Econometrica 46, 1978.
    """
    level = quantiles.new_tensor(levels)
    error = y.unsqueeze(-1) - quantiles
    return torch.maximum(level * error, (level - 1) * error).mean(-1)


def client_data(windows: Windows, locations: np.ndarray | None = None) -> ClientData:
    """Convert windows to samples of clients; every cell is a client with equally many windows.

    Longitude and latitude `(cells, 2)` are added to each sample as `location`.
    """
    clients, samples = windows.x.shape[:2]
    tensors = {n: torch.from_numpy(a) for n, a in vars(windows).items() if a is not None}
    tensors["slot"] = tensors["slot"].expand(clients, -1)
    tensors["sample"] = torch.arange(samples).expand(clients, -1)
    if locations is not None:
        where = torch.from_numpy(locations).float()
        tensors["location"] = where[:, None].expand(clients, samples, 2)
    return ClientData(tensors, torch.full((clients,), samples))

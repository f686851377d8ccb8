"""A fitted model as an ONNX graph: from raw readings and the wall clock to forecasts and bounds.

The graph does what `FittedModel.predict` and `bounds` do, in the same precisions: it scales and
fills the readings, cuts windows by the wall clock, computes the calendar and the weekly profile,
runs the method's network, mixes its experts, calibrates the bounds, and returns all in the data's
units. Only a method that trains in rounds has a network; `check_exportable` says what else is left
out.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from data_prep.base.errors import InputError, Words, needing
from data_prep.base.files import atomic_path
from stforecast.baselines.pretrained import Past, Perceptron, WallClock, trained_arrays, weekday
from stforecast.data.anchors import LEVEL
from stforecast.data.clock import CALENDAR_INPUTS
from stforecast.data.dates import DAY, WEEK
from stforecast.data.series import Series
from stforecast.data.weekly_profile import SHRINKAGE
from stforecast.data.windows import RECENT as RECENT_GAP
from stforecast.forecasting.mixed_forecasts import mixed_levels
from stforecast.forecasting.mixture import MixtureWindows, error_windows, mixed
from stforecast.forecasting.model import FittedModel
from stforecast.forecasting.trained_method import TrainedMethod
from stforecast.intervals.radii import FURTHEST, OFFSET, RECENT, ErrorScale
from stforecast.methods.mixing import EXPERTS
from stforecast.metrics.interval import pair_coverages

INPUTS, OUTPUTS = ("history", "clock"), ("forecast", "lower", "upper")
"""Names of the graph's inputs and outputs."""


def check_exportable(model: FittedModel) -> TrainedMethod:
    """Return the trained method of a model.

    Raises:
        InputError: saying why the model cannot be a graph.
    """
    window, predictor = model.config.window, model.latest
    reasons = {
        f"{model.config.method} is no network": not isinstance(predictor, TrainedMethod),
        "its clients have several cells": not model.clients.by_cell,
        "it learns differences (target)": window.target != LEVEL,
        "it reads events": bool(window.n_events),
        "it reads public holidays": bool(window.holidays),
        "it reads further services or columns of the cells": bool(window.n_covariates),
        f"it fills gaps by {window.impute}": window.impute == "last-week",
        "it multiplies in bfloat16": isinstance(predictor, TrainedMethod)
        and predictor.method.population.mixed,
    }
    for reason, holds in reasons.items():
        if holds:
            raise _refused(reason)
    assert isinstance(predictor, TrainedMethod)
    return predictor


def _refused(reason: str) -> InputError:
    return InputError(
        f"this model cannot be exported to ONNX, since {reason}; `stforecast serve` gives its "
        "forecasts to other programs"
    )


def fewest_steps(model: FittedModel) -> int:
    """Return the length of a history by default: what windows, mixture and profile read.

    It is five weeks or more if they read the weekly profile.
    """
    window, week, predictor = model.config.window, WEEK // model.step, model.latest
    mixed = isinstance(predictor, TrainedMethod) and predictor.mixture.usual_weights(model.step)
    steps = window.reach + (2 * (week + window.horizon) if mixed else 0)
    return int(max(steps, 5 * week if window.n_profile or mixed else 13))


def graph_inputs(model: FittedModel, series: Series, n_steps: int) -> dict[str, np.ndarray]:
    """Return the inputs of a graph of `n_steps` from a series of `Forecaster.read`.

    Returns:
        `history`: `(steps, cells)` float64 readings in the data's units, NaN where missing;
        `clock`: `(steps + horizon,)` int64 seconds from 1970 to each step's begin as the local wall
        clock shows it.
    """
    n = len(series.values)
    if n < n_steps:
        raise InputError(
            f"{series.name} has {n} steps, the graph reads {n_steps}; give a longer history, or ",
            Words("export a graph of fewer {steps}"),
        )
    steps = np.arange(n - n_steps, n + model.config.window.horizon)
    clock = series.calendar.local_times(steps).as_unit("s").astype(np.int64).to_numpy()
    return {"history": series.values[-n_steps:].astype(np.float64), "clock": clock}


def export_onnx(model: FittedModel, out: str | os.PathLike[str], n_steps: int = 0) -> int:
    """Write a model as an ONNX graph; return the number of steps of history that it reads.

    Args:
        model: the model, on the CPU.
        out: the file.
        n_steps: steps of history; 0 for `fewest_steps`. Forecasts equal those of `predict` from a
            history of as many steps.

    Raises:
        InputError: if the model cannot be exported, the steps are too few, or onnx is missing.
    """
    predictor = check_exportable(model)
    n_steps, fewest = n_steps or fewest_steps(model), max(model.config.window.reach, 13)
    if n_steps < fewest:
        raise InputError(f"steps is {n_steps}; the model reads at least {fewest}")
    with needing("onnx", f"{out}: needs a library"):
        import onnx
    graph = Graph(model, predictor, n_steps).eval()
    history = torch.zeros(n_steps, len(model.cells), dtype=torch.float64)
    step = round(model.step.total_seconds())
    clock = step * torch.arange(n_steps + model.config.window.horizon)
    with atomic_path(Path(out)) as part, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # Of traced shapes, which do not change.
        try:
            torch.onnx.export(
                graph, (history, clock), str(part), input_names=list(INPUTS), dynamo=False,
                output_names=list(OUTPUTS if graph.bounded else OUTPUTS[:1]), opset_version=17,
            )  # fmt: skip
        except RuntimeError as e:  # Of `functional_call`, and of operators that ONNX lacks.
            raise _refused(f"torch cannot trace its network ({str(e).splitlines()[0]})") from e
        made = onnx.load(str(part))
        onnx.helper.set_model_props(made, _about(model, n_steps))
        onnx.save(made, str(part))
    return n_steps


def _about(model: FittedModel, n_steps: int) -> dict[str, str]:
    return {
        "cells": "\n".join(map(str, model.cells)),
        "service": model.service,
        "units": model.units,
        "step_seconds": f"{model.step.total_seconds():g}",
        "steps": str(n_steps),
        "time_zone": model.time_zone or "",
        "coverage": f"{model.config.coverage:g}" if model.calibration else "",
    }


class Weekly(NamedTuple):
    """The weekly profile and anomalies of a history, float32, as `WeeklyProfile` by step first.

    `usual` is the profile in double precision.
    """

    usual: Tensor
    profile: Tensor
    newest: Tensor
    anomalies: tuple[Tensor, ...]


class Graph(nn.Module):
    """What `export_onnx` writes, in torch.

    Shapes:
        history: `(steps, cells)`, clock: `(steps + horizon,)`; returns forecasts and bounds
        `(horizon, cells)`, see `graph_inputs`.
    """

    def __init__(self, model: FittedModel, predictor: TrainedMethod, n_steps: int) -> None:
        super().__init__()
        self.model, self.predictor, self.n_steps = model, predictor, n_steps
        self.window, self.seconds = model.config.window, round(model.step.total_seconds())
        self.day, self.week = (int(span // model.step) for span in (DAY, WEEK))
        self.bounded = model.calibration is not None
        self.usual = predictor.mixture.usual_weights(model.step)
        mixes = predictor.mixture.reads_pretrained(model.step)
        # Built here, as a trace of `forward` would keep how its weights are first drawn.
        self.pretrained = Perceptron.from_arrays(trained_arrays()) if mixes else None
        start = np.array([n_steps])
        found = error_windows(start, self.window, self.week) if self.usual else (start[:0], 1)
        origins, self.every = found
        self.starts = [*origins.tolist(), n_steps]

    def forward(self, history: Tensor, clock: Tensor) -> tuple[Tensor, ...]:
        """Return the forecast, and the bounds if there are any."""
        scaler, n_cells = self.model.scaler, history.shape[1]
        mean, std = (torch.as_tensor(v).expand(n_cells) for v in (scaler.mean, scaler.std))
        if scaler.bounds is not None:
            wild = scaler.bounds.wild(history, at_end=True)
            history = torch.where(wild, torch.nan, history)
        z = (history - mean) / std
        wall = self._wall(clock)
        weekly = self._weekly(z, wall) if self.window.n_profile else None
        x, unknown = self._inputs(z, wall, weekly)
        quantiles = self._quantiles(x, z, wall, weekly)
        levels, last = self.predictor.levels, z[-1].nan_to_num(0.0)
        centre = quantiles[..., len(levels) // 2].double()
        found = [centre]
        if self.bounded:
            low, high = dict(pair_coverages(levels)).get(self.model.config.coverage, (0, 0))
            down, up = self._radius(centre, z, last, clock).unbind(-1)
            found.append(torch.minimum(quantiles[..., low].double() - down, centre))
            found.append(torch.maximum(quantiles[..., high].double() + up, centre))
        lower, upper = self.model.limits
        nothing = torch.full((), torch.nan, dtype=torch.float64)
        return tuple(
            torch.where(unknown, nothing, (values.T * std + mean).clamp(lower, upper))
            for values in found
        )

    def _steps(self, clock: Tensor) -> Tensor:
        """Return steps on the wall clock; what these differ from plain steps is what it moved."""
        return torch.div(clock, self.seconds, rounding_mode="floor")

    def _wall(self, clock: Tensor) -> WallClock:
        """Return the wall clock of the history, as `WallClock.of` a calendar."""
        moved = self._steps(clock) - torch.arange(len(clock))

        def before(steps: Tensor, lags: Tensor) -> Tensor:
            plain = steps - lags
            now, then = (moved[of.clamp(0, len(moved) - 1)] for of in (steps, plain))
            found = plain + now - then
            return torch.where(found < 0, plain, found)

        return WallClock(self.day, before, lambda steps: clock[steps])

    def _inputs(self, z: Tensor, wall: WallClock, weekly: Weekly | None) -> tuple[Tensor, Tensor]:
        """Return inputs `(cells, windows, inputs)`, and which cells have none `(cells,)`."""
        window, starts = self.window, torch.tensor(self.starts)
        filled = self._filled(z, weekly)
        steps = self._sources(starts, wall)
        readings = filled[steps.clamp(min=0)].float()  # (windows, lags, cells)
        readings = torch.where((steps < 0)[..., None], torch.nan, readings)
        unknown = readings[-1].isnan().all(0)
        if self.model.adapted:
            unknown = torch.zeros_like(unknown)
        if window.impute == "newest":
            place = window.lags.index(min(window.lags))
            newest = readings[:, place : place + 1]
            readings = torch.where(readings.isnan(), newest, readings)
        parts = [readings.permute(2, 0, 1)]
        if window.calendar != "none":
            known = self._calendar(wall.local(starts)).float()
            parts.append(known.expand(z.shape[1], *known.shape))
        if weekly is not None:
            parts.append(self._profile(weekly, starts, wall))
        return torch.cat(parts, dim=-1).nan_to_num(0.0), unknown

    def _filled(self, z: Tensor, weekly: Weekly | None) -> Tensor:
        """Return the readings with their gaps filled, as `windows.fill_gaps`."""
        if self.window.impute == "none":
            return z
        latest = _forward_filled(z)
        if weekly is None or self.window.impute != "newest":
            return latest
        recent = _forward_filled(z, max(1, int(RECENT_GAP // self.model.step)))
        usual = weekly.profile[: len(z)]
        usual = torch.where(usual == 0, torch.nan, usual + weekly.anomalies[-1]).double()
        for further in (usual, latest):
            recent = torch.where(recent.isnan(), further, recent)
        return recent

    def _sources(self, starts: Tensor, wall: WallClock) -> Tensor:
        """Return the steps that lags read, as `source_steps`."""
        window, lags = self.window, torch.tensor(self.window.all_lags)
        first, plain = starts[:, None], starts[:, None] - lags
        shortest = max(window.closeness, self.day - window.horizon - 2)
        moved = torch.minimum(wall.before(first, lags), first - 1)
        return torch.where(lags > shortest, moved, plain)

    def _calendar(self, clock: Tensor) -> Tensor:
        """Return `calendar_inputs` of local times `(windows,)`."""
        kind, day = self.window.calendar, 86400
        angle = 2 * torch.pi * (clock % day).double() / day
        day_of_week = weekday(clock)
        columns = [angle.sin(), angle.cos(), (2 * angle).sin(), (2 * angle).cos()]
        if kind == "week":
            columns += [day_of_week >= 5, day_of_week == 6]
        elif kind == "weekdays":
            columns += [day_of_week == i for i in range(7)]
        assert len(columns) == CALENDAR_INPUTS[kind]
        return torch.stack([column.double() for column in columns], dim=-1)

    def _profile(self, weekly: Weekly, starts: Tensor, wall: WallClock) -> Tensor:
        """Return the inputs of `WeeklyProfile`, `(cells, windows, horizon + 3)`."""
        now = starts - 1
        at_targets = self._at_targets(weekly.profile, starts, wall)
        change = at_targets - weekly.newest[now].T[..., None]
        change = self._reordered(change, starts, wall, -1)
        of_cells = [part[now].T for part in weekly.anomalies]
        return torch.cat([change, torch.stack(of_cells, dim=-1)], dim=-1)

    def _at_targets(self, profile: Tensor, starts: Tensor, wall: WallClock) -> Tensor:
        """Return a profile `(steps, cells)` at targets, `(cells, windows, horizon)`."""
        first, ahead = starts[:, None], torch.arange(self.window.horizon)
        weeks = (ahead + self.day) // self.week
        before = wall.before(first + ahead, self.week * weeks)
        steps = torch.where(weeks > 0, before, first + ahead)
        return profile[steps.clamp(min=0)].permute(2, 0, 1)

    def _weekly(self, z: Tensor, wall: WallClock) -> Weekly:
        """Return what `WeeklyProfile.of` does."""
        profile = self._usual(z, wall)
        own = profile[: self.n_steps]
        anomaly = z - own
        means = [anomaly, *(_rolling_mean(anomaly, span) for span in (self.day, self.week))]
        newest = _forward_filled(torch.where(z.isnan(), torch.nan, own))
        anomalies = tuple(_forward_filled(part).float() for part in means)
        return Weekly(profile, profile.float(), newest.float(), anomalies)

    def _usual(self, z: Tensor, wall: WallClock) -> Tensor:
        """Return the weekly profile `(steps + horizon, cells)`, as `weekly_profile._profile`."""
        n, steps = self.n_steps, torch.arange(self.n_steps + self.window.horizon)
        clock = wall.local(steps)
        local, weekend = self._steps(clock), (weekday(clock) >= 5).long()
        of_week, kind = local % self.week, 2 * (local % self.day) + weekend
        same = (of_week[:, None] == of_week) & (steps < steps[:, None])
        latest = torch.where(same, steps, -1).amax(dim=1)
        alike = (kind[:, None] == kind) & (steps <= latest[:, None])
        seen = torch.stack([z.nan_to_num(0.0), (~z.isnan()).double()])

        def totals(which: Tensor) -> tuple[Tensor, Tensor]:
            total, count = (which[:, :n].double() @ seen).unbind(0)
            return total, count

        (total, count), (of_kind, of_kinds) = totals(same), totals(alike)
        usual = of_kind / of_kinds.clamp(min=1.0)
        return (total + SHRINKAGE * usual) / (count + SHRINKAGE)

    def _reordered(self, values: Tensor, starts: Tensor, wall: WallClock, way: int) -> Tensor:
        """Order targets `(cells, windows, horizon)` by the wall clock, or back; see `windows`."""
        ahead, first = torch.arange(self.window.horizon), starts[:, None]
        now, then = (self._steps(wall.local(of)) for of in (first + ahead, first))
        moved = now - then - ahead
        entries = (ahead + way * moved).clamp(0, self.window.horizon - 1)
        return values.gather(2, entries.expand(values.shape))

    def _quantiles(self, x: Tensor, z: Tensor, wall: WallClock, weekly: Weekly | None) -> Tensor:
        """Return the quantiles of the last window, `(cells, horizon, levels)`."""
        found = self._own(self.predictor, x[:, -1:])
        if self.usual:
            own = self._own(self.predictor.former or self.predictor, x[:, :-1])
            found = self._mixed(torch.cat([own, found], dim=1), z, wall, weekly)
        ordered = found[:, 0, 0].sort(dim=-1).values.permute(0, 2, 1)
        starts = torch.tensor(self.starts[-1:]).expand(ordered.shape[1])
        return self._reordered(ordered, starts, wall, 1).permute(0, 2, 1)

    def _own(self, predictor: TrainedMethod, x: Tensor) -> Tensor:
        """Return a network's experts, `(cells, windows, experts, horizon, levels)`."""
        experts = predictor.mixture.has_experts
        outputs = self._outputs(predictor, x, EXPERTS if experts else predictor.view)
        n_levels = self.model.config.loss.n_outputs
        return outputs.reshape(*outputs.shape[:2], 1 + experts, -1, n_levels)

    def _mixed(self, own: Tensor, z: Tensor, wall: WallClock, weekly: Weekly | None) -> Tensor:
        """Return the mixture of the last window's forecasts, as `Mixture.mixed`.

        Args:
            own: `(cells, windows, experts, horizon, levels)` of all windows.
            z: `(steps, cells)` the history, z-scored.
            wall: its wall clock.
            weekly: the weekly profile, if windows read it.

        Returns:
            `(cells, 1, 1, horizon, levels)`.
        """
        starts, horizon, others = torch.tensor(self.starts), self.window.horizon, []
        steps = starts[:, None] + torch.arange(horizon)
        past, n = Past(z, wall), len(self.starts) - 1
        if self.predictor.mixture.has_experts:
            assert weekly is not None
            others.append(self._at_targets(weekly.usual, starts, wall))
        if self.pretrained is not None:
            inputs = past.inputs(starts, torch.arange(1, horizon + 1))
            others.append(self.pretrained.levels(inputs).float())
        newest = _forward_filled(z)[starts - 1].T
        others.append(newest[..., None].expand(-1, -1, horizon).float())
        others = [self._reordered(of.nan_to_num(0.0), starts, wall, -1) for of in others]
        unknown = torch.full_like(z[:horizon], torch.nan)
        y = torch.cat([z, unknown])[steps[:n]].permute(2, 0, 1).float()
        middle = len(self.predictor.levels) // 2
        found, weights = mixed(
            [*own[..., middle].unbind(2), *others],
            self.usual,
            self._reordered(y, starts[:n], wall, -1),
            past.scale(starts[:n])[1],
            MixtureWindows(
                np.array(self.starts),
                self._reordered(steps[None], starts, wall, -1)[0],
                horizon, n, self.every, wall.before, self.day,
            ),
        )  # fmt: skip
        return mixed_levels(own[:, -1:], found, weights)[:, :, None]

    def _outputs(self, predictor: TrainedMethod, x: Tensor, view: str | None) -> Tensor:
        """Return a network's outputs, `(cells, windows, outputs)`."""
        method, state = predictor.method, predictor.snapshot
        method.population.train(False)
        clients, everyone = state.clients, state.participants(torch.arange(len(self.model.cells)))
        payload = method.broadcast(state.server, everyone)
        own: dict[str, Tensor] = {**clients.params, **clients.buffers, **clients.memory}
        return method.predict(own, payload, x, view or method.views[0])

    def _radius(self, centre: Tensor, z: Tensor, last: Tensor, clock: Tensor) -> Tensor:
        """Return the calibrated radii `(cells, horizon, 2)`, see `Calibration.calibrated`."""
        calibration = self.model.calibration
        assert calibration is not None
        radius, most = (torch.as_tensor(v) for v in (calibration.radius, calibration.most))
        if calibration.scale is not None:
            scale = _scale(calibration.scale, centre, z, last, clock[self.n_steps :])
            radius = radius * scale[..., None]
        return torch.minimum(radius, most)


def _scale(scale: ErrorScale, centre: Tensor, z: Tensor, last: Tensor, ahead: Tensor) -> Tensor:
    """Return the size of errors to expect, `(cells, horizon)`, as `ErrorScale.at`."""
    tensors = {name: torch.as_tensor(value).double() for name, value in vars(scale).items()}
    n = len(RECENT)
    changes = (z[-n:] - z[-n - 1 : -1]).abs() / tensors["change"]
    changes = torch.where(changes.isnan(), 1.0, changes).flip(0)  # the newest first
    recent = torch.as_tensor(RECENT / RECENT.sum()) @ changes
    hours = torch.div(ahead, 3600, rounding_mode="floor") % 24
    deviation = (tensors["by_hour"] + OFFSET).log()[hours].T
    recent = (recent + OFFSET).log()[:, None].expand_as(centre)
    features = torch.stack([recent, deviation, centre, (centre - last[:, None]).abs()], dim=-1)
    standard = ((features - tensors["centre"]) / tensors["spread"]).clamp(-FURTHEST, FURTHEST)
    return (standard @ tensors["weights"]).exp()


def _forward_filled(values: Tensor, limit: int = 0) -> Tensor:
    """Replace each NaN of `(steps, cells)` by the value before it, up to `limit` steps if given."""
    steps = torch.arange(len(values))[:, None]
    at, reach = torch.where(values.isnan(), -1, steps), 1
    while reach < len(values):
        earlier = torch.cat([torch.full_like(at[:reach], -1), at[:-reach]])
        at, reach = torch.maximum(at, earlier), 2 * reach
    unknown = (at < 0) | (steps - at > limit) if limit else at < 0
    return torch.where(unknown, torch.nan, values.gather(0, at.clamp(min=0)))


def _rolling_mean(values: Tensor, span: int) -> Tensor:
    """Return the means of the known ones of the last `span` values, NaN where there are none."""
    known = torch.stack([values.nan_to_num(0.0), (~values.isnan()).double()])
    sums = torch.cat([torch.zeros_like(known[:, :1]), known.cumsum(dim=1)], dim=1)
    ends = torch.arange(1, values.shape[0] + 1)
    total, count = (sums[:, ends] - sums[:, (ends - span).clamp(min=0)]).unbind(0)
    return total / count  # 0 / 0 is NaN.

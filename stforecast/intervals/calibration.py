"""Calibration of bands on the validation part, and the record in a saved forecaster."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.progress import noting
from stforecast.data.clock import Calendar
from stforecast.data.prepared import PreparedSeries
from stforecast.federated.runs.model_files import AGAIN
from stforecast.intervals.bands import Bands, IntervalOptions, widened
from stforecast.intervals.radii import (
    ErrorScale,
    conformal_radius,
    fitted,
    largest_known,
    scale_shapes,
    side_scores,
    tracked_radii,
)

PREFIX = "interval/"
"""Begin of the names of saved arrays."""

VALUES = 2**17
"""Radii that tracking keeps of the cells that are calibrated at a time, for each of its rates."""


@dataclass(frozen=True, eq=False)
class WindowBands:
    """Bands and targets of windows, z-scored.

    Attributes:
        starts: `(windows,)` first target steps.
        bands: forecasts and intervals before calibration.
        y: `(cells, windows, horizon)` targets.
        mask: bool of the same shape, False where the target was not observed.
    """

    starts: np.ndarray
    bands: Bands
    y: np.ndarray
    mask: np.ndarray

    def of_cells(self, some: slice) -> WindowBands:
        """Return the bands and targets of some cells."""
        return WindowBands(self.starts, self.bands.of_cells(some), self.y[some], self.mask[some])


@dataclass(frozen=True, eq=False)
class Calibration:
    """What turns the band of the window after the data into bounds.

    Attributes:
        radius: `(cells, horizon, 2)` distances to widen by, down and up, for a scale of 1.
        most: `(cells, horizon, 2)` largest distances, inf for none.
        scale: size of errors by time; None for 1.
    """

    radius: np.ndarray
    most: np.ndarray
    scale: ErrorScale | None = None

    def of_cells(self, some: slice) -> Calibration:
        """Return the calibration of some cells."""
        scale = self.scale and self.scale.of_cells(some)
        return Calibration(self.radius[some], self.most[some], scale)

    @classmethod
    def of_parts(cls, parts: Sequence[Calibration]) -> Calibration:
        """Return the calibration of the cells of all parts, whose scales have the same weights."""
        radius, most = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("radius", "most")
        )
        scales = [part.scale for part in parts if part.scale]
        return cls(radius, most, ErrorScale.of_parts(scales) if scales else None)

    def calibrated(
        self, bands: Bands, series: np.ndarray, starts: np.ndarray, calendar: Calendar
    ) -> Bands:
        """Calibrate bands; all coverages get the same radius.

        Series, starts and calendar are those from which they were forecast.
        """
        radius = self.radius[:, None]
        if self.scale:
            radius = radius * self.scale.at(series, starts, bands.centre, calendar)[..., None]
        radius = np.minimum(radius, self.most[:, None])
        return widened(bands, dict.fromkeys(bands.bounds, radius))

    def renewed(self, newer: Calibration) -> Calibration:
        """Return a newer calibration whose radii narrow at most halfway from these.

        Two weeks hold few independent errors, so narrow bounds from them often cover too little.
        A radius that should widen does so at once. One that the newer errors do not tell, as of a
        counter that is silent for two weeks, stays.
        """
        newer = newer.completed(self)
        pairs = ((self.radius, newer.radius), (self.most, newer.most))
        radius, most = (
            np.where((new < old) & np.isfinite(old), (new + old) / 2, new) for old, new in pairs
        )
        return Calibration(radius, most, newer.scale)

    def completed(self, older: Calibration, unit: np.ndarray | float = 1.0) -> Calibration:
        """Return this one with older distances, in a `unit`, where it knows too few errors."""
        pairs = ((older.radius, self.radius), (older.most, self.most))
        unknown = np.isinf(self.radius)
        radius, most = (np.where(unknown, unit * old, new) for old, new in pairs)
        return Calibration(radius, most, self.scale)

    def joined(self, ids: np.ndarray) -> Calibration:
        """Return the calibration of some of these cells and of new ones, which have the mean.

        Args:
            ids: `(cells,)` position among these cells; new ones have higher numbers.
        """
        rows = np.minimum(ids, len(self.radius))
        joined = []
        for values in (self.radius, self.most):
            finite = np.isfinite(values)
            total, n = np.where(finite, values, 0).sum(axis=0), finite.sum(axis=0)
            mean = np.where(n > 0, total / np.maximum(n, 1), np.inf)  # inf where none is finite.
            joined.append(np.concatenate([values, mean[None]])[rows])
        radius, most = joined
        scale = self.scale and dataclasses.replace(
            self.scale,
            change=np.append(self.scale.change, self.scale.change.mean())[rows],
            by_hour=np.column_stack([self.scale.by_hour, self.scale.by_hour.mean(axis=1)])[:, rows],
        )
        return Calibration(radius, most, scale)

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays to save."""
        scale = {} if self.scale is None else vars(self.scale)
        arrays = {"radius": self.radius, "most": self.most}
        arrays |= {f"scale/{name}": values for name, values in scale.items()}
        return {PREFIX + name: values for name, values in arrays.items()}

    @classmethod
    def from_state(
        cls, state: Mapping[str, np.ndarray], intervals: str, n_cells: int, horizon: int
    ) -> Calibration:
        """Restore a calibration from its `state`.

        Args:
            state: its arrays; others are ignored.
            intervals: the setting of that name.
            n_cells: number of cells.
            horizon: steps ahead.

        Raises:
            InputError: if an array does not fit the settings.
            KeyError: if an array is missing.
        """
        shapes: dict[str, tuple[int, ...]]
        shapes = dict.fromkeys((PREFIX + "radius", PREFIX + "most"), (n_cells, horizon, 2))
        of_scale = scale_shapes(n_cells) if intervals == "normalised" else {}
        shapes |= {f"{PREFIX}scale/{name}": shape for name, shape in of_scale.items()}
        for name, shape in shapes.items():
            values = state[name]
            if values.shape != shape:
                raise InputError(
                    f"{name} has shape {values.shape}, the settings say {shape}; {AGAIN}"
                )
            if np.isnan(values).any():
                raise InputError(f"{name} has values that are not numbers; {AGAIN}")
        radius, most, *scale = (state[name] for name in shapes)
        return cls(radius, most, ErrorScale(*scale) if scale else None)


def calibrate(
    data: PreparedSeries,
    known: WindowBands,
    coming: WindowBands,
    options: IntervalOptions,
    scale: ErrorScale | None = None,
) -> tuple[Bands, dict[float, Calibration]]:
    """Calibrate the bands of the test part on the validation part.

    Args:
        data: the series.
        known: windows whose targets are known when the test part begins.
        coming: windows of the test part, one step apart; `normalised` uses a target only once it is
            known.
        options: `conformal` or `normalised`.
        scale: size of errors whose weights `normalised` takes; by default they are fitted here.

    Returns:
        The bands of the test part, and by coverage what calibrates the window after it.
    """
    if options.intervals == "normalised":
        of_parts = (data.z, data.split.fit, data.calendar)
        scale = scale.of_series(*of_parts) if scale else fit_scale(data, known)
    horizon, like = coming.y.shape[-1], coming.bands.map(np.empty_like)
    at_once = max(1, VALUES // (horizon * (horizon + 1)))
    after: dict[float, list[Calibration]] = {coverage: [] for coverage in like.bounds}
    for i in noting(range(0, len(coming.y), at_once), "computing bounds"):
        some = slice(i, i + at_once)
        of_some = known.of_cells(some), coming.of_cells(some), scale and scale.of_cells(some)
        found, then = _calibrate(data.z[:, some], data.calendar, *of_some)
        for coverage, bounds in found.bounds.items():
            after[coverage].append(then[coverage])
            for values, part in zip(like.bounds[coverage], bounds, strict=True):
                values[some] = part
    bands = Bands(coming.bands.centre, like.bounds)
    whole = {coverage: Calibration.of_parts(parts) for coverage, parts in after.items()}
    return bands, whole


def fit_scale(data: PreparedSeries, known: WindowBands) -> ErrorScale:
    """Fit the size of errors by time to the known windows of a series."""
    own = known.of_cells(fitted(len(known.y)))
    errors = np.where(own.mask, np.abs(own.y - own.bands.centre), np.nan)
    of_parts = (data.z, data.split.fit, data.calendar)
    return ErrorScale.fit(*of_parts, known.starts, own.bands.centre, errors)


def _calibrate(
    z: np.ndarray,
    calendar: Calendar,
    known: WindowBands,
    coming: WindowBands,
    scale: ErrorScale | None,
) -> tuple[Bands, dict[float, Calibration]]:
    """Calibrate the bands of some cells, as all arguments are; see `calibrate`."""
    of_known = sizes = np.ones((1, 1, 1))
    if scale is not None:
        of_known, sizes = (
            scale.at(z, part.starts, part.bands.centre, calendar) for part in (known, coming)
        )
    radii, after = {}, {}
    for coverage, bounds in known.bands.bounds.items():
        past = side_scores(bounds, known.y, known.mask)
        if scale is None:
            of_both = conformal_radius(np.maximum(*past), coverage)
            radius = np.stack([of_both[:, None]] * 2, -1)
            most = np.full(radius.shape, np.inf)
        else:
            # Half the width of the whole interval is tracked: it is positive.
            inner = ((bounds[1] - bounds[0]) / (2 * of_known)).mean(axis=1, keepdims=True)
            new = side_scores(coming.bands.bounds[coverage], coming.y, coming.mask)
            sides = [
                tracked_side(*side, (of_known, sizes), inner, (1 + coverage) / 2)
                for side in zip(past, new, strict=True)
            ]
            radius, most = (np.stack(part, -1) for part in zip(*sides, strict=True))
        # Views would keep the radii of all windows alive.
        after[coverage] = Calibration(radius[:, -1].copy(), most[:, -1].copy(), scale)
        n_windows = sizes.shape[1]
        radii[coverage] = np.minimum(radius[:, :n_windows] * sizes[..., None], most[:, :n_windows])
    return widened(coming.bands, radii), after


def tracked_side(
    known: np.ndarray,
    coming: np.ndarray,
    scales: tuple[np.ndarray, np.ndarray],
    inner: np.ndarray,
    share: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return radii of one side for a scale of 1, and largest distances, as `tracked_radii`.

    If a step ahead has too few known scores for the share, each has the scores of all steps.

    Args:
        known: scores of the calibration windows on this side.
        coming: of the test windows.
        scales: sizes of errors in both.
        inner: distance to the forecast that radii begin at, for a scale of 1.
        share: share of targets within the bound.
    """
    past, new = known / scales[0] + inner, coming / scales[1] + inner
    if known.shape[1] < fewest_scores(share):
        past, known = _of_all_steps(past), _of_all_steps(known)
    most = largest_known(known, coming)
    # At most twice the largest score that is known of the client and step ahead: the scale must not
    # carry a bound further than errors have been.
    most = np.where(np.isneginf(most), np.inf, 2.0 * np.maximum(most, 0))
    return tracked_radii(past, new, share) - inner, most


def fewest_scores(share: float) -> int:
    """Return the number of scores from which the largest is a bound for this share of targets.

    >>> fewest_scores(0.9), fewest_scores(0.95)
    (9, 19)
    """
    return math.ceil(round(share / (1 - share), 9))


def _of_all_steps(known: np.ndarray) -> np.ndarray:
    """Return the scores of all windows and steps for each step, `(cells, n * horizon, horizon)`."""
    return np.repeat(known.reshape(len(known), -1, 1), known.shape[2], axis=2)

"""Scores against one setting, one line for each method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeGuard

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from data_prep.base.errors import InputError, Words, choose
from stforecast.bench.curves import Curve, as_curves
from stforecast.bench.drawing import PlainFigure, add_legend, panels
from stforecast.bench.run_groups import R
from stforecast.bench.tables import mean_and_spread

DECADES = 2
"""Ratio of values above which the axis is logarithmic."""

MOST_TICKS = 8
"""Maximum number of values for which a logarithmic axis labels all of them."""


def draw_sweep(
    runs: Sequence[R],
    setting: str | None,
    score: Callable[[Sequence[R]], np.ndarray],
    default: Callable[[R, str], object],
    y_name: Callable[[bool], str],
    width: float,
) -> PlainFigure:
    """Draw scores against one setting, such as tau, with one line for each method.

    Each point is the mean of the runs that differ only in the seed, in a band of one standard
    deviation (with n - 1). Runs are grouped into lines by method and other settings, not by label.
    A method without the setting is a horizontal line. Without a setting, the only number in which
    the runs differ is taken. `y_name` is given whether a point has several seeds.
    """
    as_curves(runs)
    setting = setting or _swept(runs)
    values = _values(runs, setting)
    curves = as_curves([_without(run, setting) for run in runs])
    lines = [_line(curve, values, score) for curve in curves]
    if not any(len(line.points) > 1 for line in lines):
        raise InputError(
            f"no two of these runs differ in {setting} alone; give runs of a method with several "
            "values of it, all else equal"
        )
    fig, (ax,) = panels(width, 2.3)
    for line in lines:
        _draw(ax, line, setting)
    swept = sorted({value for line in lines for value in line.points})
    _scale(ax, swept)
    defaults = [default(line.curve.group.runs[0], setting) for line in lines if line.points]
    note = _mark_defaults(ax, [d for d in defaults if _is_number(d)], swept)
    ax.set_xlabel(setting)
    several = any(len(scores) > 1 for line in lines for scores in line.all_scores)
    ax.set_ylabel(y_name(several))
    add_legend(fig, note)
    return fig


@dataclass(frozen=True, eq=False)
class SweepLine(Generic[R]):
    """Scores `(runs,)` of one method by value of the setting, or its level without the setting."""

    curve: Curve[R]
    points: Mapping[float, np.ndarray]
    level: np.ndarray | None = None

    @property
    def all_scores(self) -> list[np.ndarray]:
        """Return the scores at each point, or those of the level."""
        return [*self.points.values()] if self.level is None else [self.level]


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(runs: Sequence[R]) -> dict[str, set[float]]:
    """Return the values of every numeric setting."""
    found: dict[str, set[float]] = {}
    for run in runs:
        for name, value in run.settings.items():
            if name not in run.no_difference and _is_number(value):
                found.setdefault(name, set()).add(value)
    return found


def _swept(runs: Sequence[R]) -> str:
    """Return the only numeric setting in which the runs differ."""
    differing = [name for name, values in _numbers(runs).items() if len(values) > 1]
    if len(differing) == 1:
        return differing[0]
    found = f"differ in {', '.join(differing)}" if differing else "differ in no number"
    raise InputError(
        f"these runs {found}; ", Words("choose one with {setting}, and runs that differ in it")
    )


def _values(runs: Sequence[R], setting: str) -> dict[Path, float | None]:
    """Return the value of the setting of each run, by folder."""
    numbers = _numbers(runs)
    settings = {run.folder: run.settings.get(setting) for run in runs}
    for run in runs:
        value = settings[run.folder]
        if setting in run.no_difference or not (value is None or _is_number(value)):
            raise InputError(
                f"{run.folder}: {setting} is {value!r}; a sweep needs a number that makes a "
                "difference"
            )
    if setting not in numbers:
        raise choose("setting", setting, numbers)
    return settings


def _without(run: R, setting: str) -> R:
    """Return the run without the setting and without its label, which is likely to name it."""
    settings = {k: v for k, v in run.settings.items() if k != setting}
    about = {k: v for k, v in run.about.items() if k != "label"}
    return dataclasses.replace(run, about={**about, "settings": settings})


def _line(
    curve: Curve[R],
    values: Mapping[Path, float | None],
    score: Callable[[Sequence[R]], np.ndarray],
) -> SweepLine[R]:
    groups: dict[float, list[R]] = {}
    without: list[R] = []
    for run in curve.group.runs:
        value = values[run.folder]
        (without if value is None else groups.setdefault(value, [])).append(run)
    if not groups:
        return SweepLine(curve, {}, score(without))
    if without:
        raise InputError(
            f"{without[0].folder}: lacks the setting that other runs of {curve.group.name} have; "
            "run it again, or leave it out"
        )
    return SweepLine(curve, {v: score(groups[v]) for v in sorted(groups)})


def _draw(ax: Axes, line: SweepLine[R], setting: str) -> None:
    mean, spread = np.array([mean_and_spread(scores) for scores in line.all_scores]).T
    low, high, style, band = mean - spread, mean + spread, line.curve.line, line.curve.band
    name = line.curve.group.name
    label = name if np.isfinite(mean).all() else f"{name}, not finite everywhere"
    if line.level is not None:
        ax.axhline(mean[0], label=f"{label}, has no {setting}", **style)
        ax.axhspan(low[0], high[0], **band)
        return
    x = np.array(list(line.points))
    ax.plot(x, mean, label=label, marker=line.curve.marker, markersize=3.5, **style)
    ax.fill_between(x, low, high, **band)


def _scale(ax: Axes, values: Sequence[float]) -> None:
    """Make the x axis logarithmic if necessary; linear around 0 if the values include 0."""
    sizes = [abs(value) for value in values if value]
    if not sizes or max(sizes) <= 10**DECADES * min(sizes):
        return
    if values[0] > 0:
        ax.set_xscale("log")
    else:
        ax.set_xscale("symlog", linthresh=min(sizes))
    ax.xaxis.set_major_formatter("{x:g}")
    if len(values) <= MOST_TICKS:
        ax.xaxis.set_major_locator(FixedLocator(values))
        ax.xaxis.set_minor_locator(NullLocator())


def _mark_defaults(ax: Axes, defaults: Sequence[float], values: Sequence[float]) -> str:
    """Draw a vertical line at each default; return a note on those outside the values."""
    outside = []
    for default in dict.fromkeys(defaults):
        if values[0] <= default <= values[-1]:
            dots = (0, (1, 1.5))
            ax.axvline(default, color="0.5", linestyle=dots, label=f"default: {default:g}")
        else:
            outside.append(f"{default:g}")
    return f"Default, not in this range: {', '.join(outside)}" if outside else ""

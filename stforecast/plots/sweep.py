"""The figure of errors against one setting."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from data_prep.errors import InputError, choose
from data_prep.registry import listed
from stforecast.plots.curves import Curve, as_curves
from stforecast.plots.drawing import ONE_COLUMN, add_legend, panels
from stforecast.plots.scores import axis_name, mean_and_spread, pooled
from stforecast.results import Run
from stforecast.variants import NO_DIFFERENCE

DECADES = 2
"""Values that span more than this are drawn on a logarithmic axis."""

MOST_TICKS = 8
"""Up to which every value of a logarithmic axis is named."""


@listed
def sweep(
    runs: Sequence[Run],
    *,
    setting: str | None = None,
    metric: str = "mse",
    selection: str | None = None,
    width: float = ONE_COLUMN,
) -> Figure:
    """Test error against one setting, such as tau: one line for each method.

    Each point is the mean of the runs that differ in the seed alone, in a band of one standard
    deviation (with n - 1). Lines are told apart by method and other settings, not by label. A
    method without the setting is a level line. As Figure 6 of FUELS (arXiv 2404.03702).

    Args:
        runs: finished runs.
        setting: number on the x axis, logarithmic if its values span more than two decades; may be
            left out if the runs differ in one number alone.
        metric: which error, pooled over clients and steps; raw_… is in the data's units.
        selection: which model: best, last, or another that the run has, such as "best (global)"; by
            default the one that each run's settings chose.
        width: width of the figure in inches.

    Raises:
        InputError: listing the settings, metrics or selections if there is no such one, or if no
            two runs differ in the setting alone.
    """
    as_curves(runs)
    setting = setting or _swept(runs)
    values = _values(runs, setting)
    curves = as_curves([_without(run, setting) for run in runs])
    lines = [_line(curve, values, metric, selection) for curve in curves]
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
    note = _mark_defaults(ax, lines, swept, setting)
    ax.set_xlabel(setting)
    several = any(len(errors) > 1 for line in lines for errors in line.all_errors)
    ax.set_ylabel(axis_name(metric, runs, selection, seeds=several))
    add_legend(fig, note)
    return fig


@dataclass(frozen=True, eq=False)
class Line:
    """Errors of one method.

    Attributes:
        curve: how it is drawn.
        points: errors `(runs,)` by value of the setting, in order.
        level: errors `(runs,)` of a method without the setting, else None.
    """

    curve: Curve
    points: Mapping[float, np.ndarray]
    level: np.ndarray | None = None

    @property
    def all_errors(self) -> list[np.ndarray]:
        """Errors at each point, or those of the level."""
        return [*self.points.values()] if self.level is None else [self.level]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(runs: Sequence[Run]) -> dict[str, set[float]]:
    """The values of every setting that is a number."""
    found: dict[str, set[float]] = {}
    for run in runs:
        for name, value in run.about["settings"].items():
            if name not in NO_DIFFERENCE and _is_number(value):
                found.setdefault(name, set()).add(value)
    return found


def _swept(runs: Sequence[Run]) -> str:
    """The only number in which the runs differ."""
    differing = [name for name, values in _numbers(runs).items() if len(values) > 1]
    if len(differing) == 1:
        return differing[0]
    found = f"differ in {', '.join(differing)}" if differing else "have no number that differs"
    raise InputError(f"these runs {found}; choose one with --setting, and runs that differ in it")


def _values(runs: Sequence[Run], setting: str) -> dict[Path, float | None]:
    """The setting of each run by its folder."""
    numbers = _numbers(runs)
    settings = {run.folder: run.about["settings"].get(setting) for run in runs}
    for folder, value in settings.items():
        if setting in NO_DIFFERENCE or not (value is None or _is_number(value)):
            raise InputError(
                f"{folder}: {setting} is {value!r}; a sweep needs a number that makes a difference"
            )
    if setting not in numbers:
        raise choose("setting", setting, numbers)
    return settings


def _without(run: Run, setting: str) -> Run:
    """The run as if it had neither the setting nor a label, which is likely to say it."""
    settings = {k: v for k, v in run.about["settings"].items() if k != setting}
    about = {k: v for k, v in run.about.items() if k != "label"}
    return dataclasses.replace(run, about={**about, "settings": settings})


def _line(
    curve: Curve, values: Mapping[Path, float | None], metric: str, selection: str | None
) -> Line:
    groups: dict[float, list[Run]] = {}
    without: list[Run] = []
    for run in curve.runs:
        value = values[run.folder]
        (without if value is None else groups.setdefault(value, [])).append(run)
    if not groups:
        return Line(curve, {}, pooled(without, metric, selection))
    if without:
        raise InputError(
            f"{without[0].folder}: lacks the setting that other runs of {curve.name} have; run it "
            "again, or leave it out"
        )
    return Line(curve, {v: pooled(groups[v], metric, selection) for v in sorted(groups)})


def _draw(ax: Axes, line: Line, setting: str) -> None:
    mean, spread = np.array([mean_and_spread(errors) for errors in line.all_errors]).T
    low, high, style = mean - spread, mean + spread, line.curve.line
    band: dict[str, Any] = {"color": line.curve.color, "alpha": 0.2, "linewidth": 0}
    name = line.curve.name
    label = name if np.isfinite(mean).all() else f"{name}, not finite everywhere"
    if line.level is not None:
        ax.axhline(mean[0], label=f"{label}, has no {setting}", **style)
        ax.axhspan(low[0], high[0], **band)
        return
    x = np.array(list(line.points))
    ax.plot(x, mean, label=label, marker=line.curve.marker, markersize=3.5, **style)
    ax.fill_between(x, low, high, **band)


def _scale(ax: Axes, values: Sequence[float]) -> None:
    """Make the x axis logarithmic if need be; linear around 0 if the values hold it."""
    sizes = [abs(value) for value in values if value]
    if not sizes or max(sizes) <= 10**DECADES * min(sizes):
        return
    if values[0] > 0:
        ax.set_xscale("log")
    else:
        ax.set_xscale("symlog", linthresh=min(sizes))
    if len(values) <= MOST_TICKS:
        ax.xaxis.set_major_locator(FixedLocator(values))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_locator(NullLocator())


def _mark_defaults(ax: Axes, lines: Sequence[Line], values: Sequence[float], setting: str) -> str:
    """A vertical line at each default, and what to say of those that lie outside the values."""
    known = [_default(line.curve.runs[0], setting) for line in lines if line.points]
    outside = []
    for default in dict.fromkeys(d for d in known if d is not None):
        if values[0] <= default <= values[-1]:
            dots = (0, (1, 1.5))
            ax.axvline(default, color="0.5", linestyle=dots, label=f"default: {default:g}")
        else:
            outside.append(f"{default:g}")
    return f"Default, not in this range: {', '.join(outside)}" if outside else ""


def _default(run: Run, setting: str) -> float | None:
    """What the setting is if nobody sets it; None if that is no number."""
    from stforecast.config import RunOptions, resolve

    model = run.about["settings"].get("model", RunOptions.model)
    default = resolve(run.method, model=model).flat().get(setting)
    return default if _is_number(default) else None

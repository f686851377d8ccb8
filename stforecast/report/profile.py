"""One HTML file on the data of a cube or a table, before any model: `stforecast info --page`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes

from data_prep.cube import local_time, observed
from stforecast.bench.drawing import (
    SMALL,
    TEXT,
    TWO_COLUMNS,
    add_legend,
    date_axis,
    panels,
    png_address,
)
from stforecast.report.write import render, write_html


def write_profile(
    out: Path,
    title: str,
    ds: xr.Dataset,
    head: Mapping[str, str],
    services: Mapping[str, Mapping[str, str]],
    command: str,
) -> Path:
    """Write a page with the facts and a picture of each service."""
    sections = [
        (name, {k: v for k, v in facts.items() if v}, _picture(ds, name))
        for name, facts in services.items()
    ]
    text = render(
        "profile.html",
        title=title,
        head={k: v for k, v in head.items() if v},
        sections=sections,
        command=command,
    )
    return write_html(out, text)


def _picture(ds: xr.Dataset, name: str) -> str:
    """Return a picture of a service as a `data:` address; of many cells, evenly chosen ones."""
    chosen = np.unique(np.linspace(0, ds.sizes["cell"] - 1, 400).astype(int))
    times = local_time(ds)
    frame = pd.DataFrame(observed(ds, name)[:, chosen].to_numpy(), times)
    frame.columns = ds["cell"].to_numpy()[chosen].astype(str)
    units = str(ds[name].attrs.get("units", "1"))
    figure, axes = panels(TWO_COLUMNS, 2.6, 4, n_columns=2)
    by_day, missing = _daily(frame), _daily(frame.isna())
    levels = by_day / by_day.median().replace(0, np.nan)
    _by_day(axes[0], missing, "Missing share of each cell and day", "Greys", (0, 1))
    _by_day(axes[1], levels, "Daily mean of each cell: 1 is its median day", "PuOr_r", (0, 2))
    _total(axes[2], by_day, name if units == "1" else f"{name}, {units}")
    _week(axes[3], frame)
    add_legend(figure)
    return png_address(figure, 160)


def _daily(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.groupby(pd.DatetimeIndex(frame.index).normalize()).mean()


def _by_day(
    axes: Axes, values: pd.DataFrame, title: str, colors: str, span: tuple[float, float]
) -> None:
    noons = pd.DatetimeIndex(values.index) + pd.Timedelta(hours=12)  # The middle of each day.
    steps = (noons, np.arange(values.shape[1]))
    drawn = axes.pcolormesh(*steps, values.to_numpy(float).T, cmap=colors, shading="nearest")
    drawn.set(clim=span, rasterized=True)
    axes.figure.colorbar(drawn, ax=axes).ax.tick_params(labelsize=SMALL)
    at = np.unique(np.linspace(0, values.shape[1] - 1, 8).astype(int))
    # The middle of a long name is left out: its end may tell it from others.
    names = [n if len(n) <= 18 else f"{n[:9]}…{n[-8:]}" for n in values.columns[at]]
    axes.set_yticks(at, names)
    axes.set_title(title, fontsize=TEXT)
    date_axis(axes, "days", most_ticks=5)


def _total(axes: Axes, by_day: pd.DataFrame, label: str) -> None:
    """Draw the mean of all cells, and where half of them and 80 % of them lie."""
    for outer, alpha in ((0.1, 0.2), (0.25, 0.35)):
        low, high = by_day.quantile(outer, axis=1), by_day.quantile(1 - outer, axis=1)
        axes.fill_between(by_day.index, low, high, alpha=alpha, color="C0", linewidth=0)
    axes.plot(by_day.index, by_day.median(axis=1), color="C0")
    axes.set_title("Daily means: median cell, middle 50 % and 80 % of cells", fontsize=TEXT)
    axes.set_ylabel(label)
    date_axis(axes, "days", most_ticks=5)


def _week(axes: Axes, frame: pd.DataFrame) -> None:
    """Draw the mean of all cells by time of day, on each day of the week."""
    mean = frame.mean(axis=1)
    index = pd.DatetimeIndex(frame.index)
    hours = index.hour + index.minute / 60
    for day, label in enumerate(("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")):
        own = index.day_of_week == day
        if own.any():
            by_time = mean[own].groupby(hours[own]).mean()
            style: Any = "--" if day > 4 else "-"
            axes.plot(by_time.index, by_time.to_numpy(), style, label=label)
    axes.set_title("Mean of all cells by time of day", fontsize=TEXT)
    axes.set_xlabel("hour")

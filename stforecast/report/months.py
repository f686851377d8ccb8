"""Page of a plan for months: the weeks of the first cells in a figure, and a table of dates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from data_prep.readers.units import with_unit
from stforecast.bench.curves import COLORS
from stforecast.bench.drawing import SMALL, TWO_COLUMNS, add_legend, date_axis, panels, png_address
from stforecast.bench.tables import number
from stforecast.data.series import Series
from stforecast.forecasting.months import DATES, Months
from stforecast.report.outlook import MOST_ROWS
from stforecast.report.tables import rest, share
from stforecast.report.write import render, write_html

DRAWN = 6
"""Cells and groups in the figure."""


def write_months(found: Months, series: Series, out: Path) -> Path:
    """Write the page; return its path."""
    if found.passing is not None:
        order = found.passing.index
    else:
        order = (-found.side.sign * found.forecast.iloc[-1]).sort_values(kind="stable").index
    quantity = with_unit(series.service, series.units)
    text = render(
        "months.html",
        title=f"{Path(series.name).name}: until {found.forecast.index[-1]:%B %Y}",
        found=found,
        quantity=quantity,
        picture=_picture(found, order[:DRAWN], quantity),
        rows=[_row(found, str(label)) for label in order[:MOST_ROWS]],
        notes=rest(MOST_ROWS, len(order), "the written tables"),
    )
    return write_html(out, text)


def _row(found: Months, label: str) -> dict[str, str]:
    lower, upper = (number(bound[label].iloc[-1]) for bound in found.interval)
    row = {
        "cell or group": label,
        "last week": number(found.past[label].iloc[-1]),
        "at the end": number(found.forecast[label].iloc[-1]),
        "bounds then": f"{lower} to {upper}",
    }
    if found.passing is not None:
        passing = found.passing.loc[label].to_dict()
        row |= {"threshold": number(passing["threshold"])}
        row |= {"probability": share(passing["probability"])}
        row |= {f"{p} % by": str(passing[f"date_{p}"] or "-") for p in DATES}
    return row


def _picture(found: Months, labels: pd.Index, quantity: str) -> str:
    """Draw some cells and groups; return a `data:` address."""
    columns = min(3, len(labels))
    figure, axes = panels(TWO_COLUMNS, 2.0, len(labels), n_columns=columns, sharex=True)
    for place, (ax, label) in enumerate(zip(axes, labels, strict=True)):
        _draw(ax, found, str(label))
        if place % columns == 0:
            ax.set_ylabel(quantity, fontsize=SMALL)
    add_legend(figure)
    return png_address(figure, 160)


def _draw(ax: Axes, found: Months, label: str) -> None:
    past, ahead = found.past[label].iloc[-3 * len(found.forecast) :], found.forecast[label]
    lower, upper = (bound[label].to_numpy() for bound in found.interval)
    before, after = (
        pd.DatetimeIndex(table.index).tz_localize(None).to_numpy() for table in (past, ahead)
    )
    ax.plot(before, past, color="black", linewidth=1.0, label="observed")
    ax.plot(after, ahead, color=COLORS[0], linewidth=1.4, label="forecast")
    ax.fill_between(after, lower, upper, color=COLORS[0], alpha=0.2, linewidth=0, label="bounds")
    shown = [past.max(), *upper]
    if found.passing is not None:
        shown.append(found.passing["threshold"][label])
        ax.axhline(shown[-1], color="0.4", linestyle=":", linewidth=0.9, label="threshold")
    ax.set_ylim(0, 1.08 * float(np.nanmax(shown)) if np.isfinite(shown).any() else 1)
    ax.set_title(label, fontsize=SMALL, loc="left")
    date_axis(ax, "week", most_ticks=5)

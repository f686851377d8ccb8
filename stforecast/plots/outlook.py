"""A forecast after the end of its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from data_prep.base.errors import InputError
from data_prep.readers.units import with_unit
from stforecast.bench.curves import COLORS
from stforecast.bench.drawing import SMALL, TWO_COLUMNS, date_axis, panels
from stforecast.plots.excerpt import entries_named

if TYPE_CHECKING:
    from stforecast.data.series import Series
    from stforecast.forecasting.tables import Interval


def draw_outlook(
    series: Series,
    forecast: pd.DataFrame,
    interval: Interval | None,
    cells: Sequence[Any] | None,
    ax: Axes | None,
) -> Axes:
    """Draw the end of a history, a forecast and its bounds; see `Forecaster.plot`.

    By default, the cell of the highest mean is drawn. The history is four times as long as the
    forecast, two days at least.
    """
    chosen = _cells(series, cells)
    if ax is None:
        _, (ax,) = panels(TWO_COLUMNS, 2.4)
    zone = series.zone
    history = pd.DataFrame(series.values, series.zoned(series.times), pd.Index(series.cells))
    length = max(4 * (forecast.index[-1] - history.index[-1]), pd.Timedelta(days=2))
    history = history[history.index[-1] - length :]
    alone, single = len(chosen) == 1, len(forecast) == 1
    for cell, color in zip(chosen, COLORS, strict=False):
        seen, name = ("black", "observed") if alone else (color, f"cell {cell}")
        ax.plot(_instants(history.index), history[cell], color=seen, label=name, linewidth=1.0)
        # Of several cells, colours tell these apart: what their lines mean is said once.
        first = cell == chosen[0]
        times, label = _instants(forecast.index), "forecast" if first else None
        look: dict[str, Any] = {"color": color, "linewidth": 1.6, "label": label}
        look |= {"linestyle": "-" if alone else "--", "marker": "o" if single else None}
        ax.plot(times, forecast[cell], markersize=4, **look)
        if interval is not None:
            label = f"{interval.lower.attrs['coverage']:.0%} interval" if first else None
            low, high = (bound[cell].to_numpy(dtype=float) for bound in interval)
            band: dict[str, Any] = {"color": color, "alpha": 0.25, "label": label}
            if single:
                ax.vlines(times, low, high, linewidth=5, **band)
            else:
                ax.fill_between(times, low, high, linewidth=0, **band)
    ax.axvline(_instants(forecast.index[:1])[0], color="0.4", linestyle=":", linewidth=0.9)
    ax.set_ylabel(with_unit(series.service, series.units))
    ax.set_title(f"cell {chosen[0]}" if len(chosen) == 1 else "", fontsize=SMALL, loc="left")
    date_axis(ax, "time" if zone is None else f"time ({zone})", zone or "UTC")
    legend = ax.legend(fontsize=SMALL, frameon=False, loc="upper left", ncols=2)
    low, high = ax.get_ylim()  # Room for the legend above the lines.
    ax.set_ylim(low, high + 0.06 * (1 + len(legend.get_texts())) * (high - low))
    legend.set_in_layout(False)
    return ax


def _instants(times: pd.Index) -> np.ndarray:
    """Return times in UTC, so that a repeated hour is drawn twice; without a zone, as they are."""
    found = pd.DatetimeIndex(times)
    return (found if found.tz is None else found.tz_convert(None)).to_numpy()


def _cells(series: Series, wanted: Sequence[Any] | None) -> list[Any]:
    if wanted is None:
        means = pd.DataFrame(series.values).mean()
        return [series.cells[int(means.fillna(-np.inf).argmax())]]
    if not 1 <= len(wanted) <= len(COLORS):
        raise InputError(f"{len(wanted)} cells; draw 1 to {len(COLORS)} at a time")
    known = {str(cell): cell for cell in series.cells}
    return entries_named(known, list(map(str, wanted)), "cell", "of the data")

"""Heat map of methods and data sets."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from stforecast.bench.curves import as_curves
from stforecast.bench.drawing import CHARACTERS_PER_INCH, SMALL, TWO_COLUMNS, panels
from stforecast.bench.run_groups import ALL, RunGroup, by_step, pooled
from stforecast.bench.tables import plus_minus
from stforecast.comparison.errors import SEASONAL
from stforecast.comparison.names import (
    by_task,
    error_name,
    error_rows,
    horizon_ahead,
    shown_steps,
    time_ahead,
)
from stforecast.comparison.table import errors_by_cell, skill_by_step
from stforecast.forecasting.results import ForecastRun
from stforecast.plots.figure import figure

DIVERGING, RISING = "PuOr", "Blues"
"""Colours of skill, orange below 0 and purple above, and of errors: safe for all kinds of colour
vision (colorbrewer2.org)."""

MISSING = "0.88"
"""Colour of a method that was not run."""

MOST_STEPS = 12
"""Longest horizon whose steps are all shown."""

ROW = 0.2
"""Height of a row in inches."""

BRIGHTNESS = np.array([0.299, 0.587, 0.114])
"""Shares of red, green and blue in the brightness of a colour (ITU-R BT.601)."""

DARK = 0.5
"""Brightness below which a colour needs white text."""


@figure
def heatmap(
    runs: Sequence[ForecastRun],
    *,
    metric: str = "mse",
    show: Literal["skill", "error"] = "skill",
    width: float = TWO_COLUMNS,
) -> Figure:
    """Skill or error of each method on each data set, as numbers on colours.

    Skill is 1 minus the geometric mean, over cells, of a method's error divided by the error of
    seasonal naive, which repeats the day or the week before: 100 % for no error, below 0 for a
    larger error than seasonal naive's. Errors are pooled over cells; their colour is the
    ratio to the lowest of the column. Both are means over seeds. Columns are the data, with the
    horizon if it differs; if all runs have the same data, they are the times ahead and the whole
    horizon. Rows are sorted by the geometric mean of the ratios of a row, or by the whole horizon;
    the best is on top. Grey: not run.

    Args:
        runs: finished runs.
        metric: error, on which the skill is based, too; raw_… is in the data's units.
        show: skill, or the error itself.
        width: width of the figure in inches.
    """
    as_curves(runs)  # Refuses no runs.
    tasks = by_task(runs)
    of_group = _skill if show == "skill" else _errors
    columns = {
        name: {group.name: of_group(group, metric) for group in groups}
        for name, groups in tasks.items()
    }
    if len(tasks) == 1:
        table = _by_step(columns, runs[0])
    else:
        of_task = {t: {n: found[ALL] for n, found in rows.items()} for t, rows in columns.items()}
        table = pd.DataFrame(of_task)
    ratios = 1 - table / 100 if show == "skill" else table / table.abs().min()
    order = _order(ratios.iloc[:, -1:] if len(tasks) == 1 else ratios)
    table, ratios = table.loc[order], ratios.loc[order]
    name, horizons = error_name(metric, runs), {horizon_ahead(run) for run in runs}
    if len(tasks) > 1 and len(horizons) == 1:
        name = f"{name}, {horizons.pop()}".removesuffix(", ")
    if show == "skill":
        fig = skill_map(table, name, width=width)
    else:
        fig, ax = _empty(table, width)
        norm = Normalize(1, min(3.0, max(1.05, _largest(ratios))))
        texts = table.map(lambda v: plus_minus(v, 0.0) if np.isfinite(v) else "∞")
        label = f"test {name}; colour: ratio to the lowest of the column"
        _draw(fig, ax, ratios.to_numpy(), texts, norm, RISING, label)
    title = "" if len(tasks) > 1 else next(iter(tasks))
    fig.axes[0].set_title(title, fontsize=SMALL, loc="left")
    return fig


def skill_map(
    table: pd.DataFrame, error: str, *, digits: int = 1, width: float = TWO_COLUMNS
) -> Figure:
    """Draw a table of skill in per cent against seasonal naive, NaN where it is unknown."""
    fig, ax = _empty(table, width)
    reach = max(1.0, min(100.0, _largest(table.abs())))
    texts = table.map(lambda v: f"{v:+.{digits if abs(v) < 100 else 0}f}")
    label = f"skill against {SEASONAL} in {error}, %"
    _draw(fig, ax, table.to_numpy(), texts, Normalize(-reach, reach), DIVERGING, label)
    return fig


def _empty(table: pd.DataFrame, width: float) -> tuple[Figure, Axes]:
    """Return an empty figure and its axes, which name rows and columns."""
    fig, (ax,) = panels(width, 1.1 + ROW * len(table))
    ax.set_yticks(range(len(table)), table.index)
    n_characters = max(6, int(0.75 * width * CHARACTERS_PER_INCH / len(table.columns)))
    heads = [_in_lines(str(name), n_characters) for name in table.columns]
    ax.set_xticks(range(len(heads)), heads)
    return fig, ax


def _skill(group: RunGroup[ForecastRun], metric: str) -> pd.Series:
    errors, naive = (errors_by_cell(group, metric, naive=n) for n in (False, True))
    return 100 * skill_by_step(errors, naive)


def _errors(group: RunGroup[ForecastRun], metric: str) -> pd.Series:
    tables = [error_rows(run, metric) for run in group.runs]
    values = [pd.concat([by_step(t), pooled(t)]).set_index("horizon")["value"] for t in tables]
    return pd.concat(values, axis=1).mean(axis=1, skipna=False).fillna(np.inf)


def _by_step(columns: Mapping[str, Mapping[str, pd.Series]], run: ForecastRun) -> pd.DataFrame:
    """Return the only task's columns by time ahead, and one for the whole horizon."""
    (rows,) = columns.values()
    table = pd.DataFrame(rows).T
    horizon = table.shape[1] - 1
    steps = range(1, horizon + 1) if horizon <= MOST_STEPS else shown_steps(horizon)
    heads = {str(step): f"{time_ahead(step, run)} ahead" for step in steps}
    if horizon == 1:
        return table[["1"]].rename(columns=heads)
    return table[[*heads, ALL]].rename(columns={**heads, ALL: horizon_ahead(run)})


def _in_lines(text: str, n_characters: int) -> str:
    r"""Divide the head of a column into lines; a number stays with its unit, a word whole.

    >>> _in_lines("milan, up to 24 h ahead", 12), _in_lines("seasonal_day", 10)
    ('milan, up to\n24 h ahead', 'seasonal_\nday')
    """
    kept = re.sub(r"(?<=\d) ", "\N{NO-BREAK SPACE}", text).replace("_", "_ ")
    lines = textwrap.fill(kept, n_characters).replace("_ ", "_")
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def _order(ratios: pd.DataFrame) -> list[str]:
    """Return the names of the rows by the geometric mean of their known ratios."""
    mean = np.log(ratios.clip(lower=1e-9)).mean(axis=1)
    return list(mean.sort_values(kind="stable").index)


def _largest(table: pd.DataFrame) -> float:
    values = table.to_numpy()
    return float(values[np.isfinite(values)].max(initial=0.0))


def _draw(
    fig: Figure,
    ax: Axes,
    colours: np.ndarray,
    texts: pd.DataFrame,
    norm: Normalize,
    cmap: str,
    label: str,
) -> None:
    missing = np.isnan(colours)
    shown = np.ma.masked_where(missing, colours)
    image = ax.imshow(shown, cmap=cmap, norm=norm, aspect="auto")
    ax.set_facecolor(MISSING)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    brightness = image.to_rgba(shown)[..., :3] @ BRIGHTNESS
    for (row, column), text in np.ndenumerate(np.where(missing, "–", texts.to_numpy())):
        dark = not missing[row, column] and brightness[row, column] < DARK
        shown_text = ax.text(column, row, text, fontsize=SMALL, color="white" if dark else "black")
        shown_text.set(ha="center", va="center_baseline")
    below, above = (colours < norm.vmin).any(), (colours > norm.vmax).any()
    beyond = {(1, 1): "both", (1, 0): "min", (0, 1): "max", (0, 0): "neither"}
    extend = beyond[int(below), int(above)]
    bar = fig.colorbar(image, ax=ax, location="bottom", fraction=0.05, aspect=40, extend=extend)
    bar.ax.tick_params(labelsize=SMALL)
    bar.set_label(label, fontsize=SMALL)

"""Heat map of methods and data sets."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from stforecast.bench.curves import as_curves
from stforecast.bench.drawing import CHARACTERS_PER_INCH, SMALL, TWO_COLUMNS, panels
from stforecast.bench.run_groups import ALL
from stforecast.comparison.errors import SEASONAL
from stforecast.comparison.names import (
    by_task,
    error_name,
    horizon_ahead,
    shown_steps,
    time_ahead,
)
from stforecast.comparison.table import errors_by_cell, skill_by_step
from stforecast.forecasting.results import ForecastRun
from stforecast.plots.figure import figure


@figure
def heatmap(
    runs: Sequence[ForecastRun],
    *,
    metric: str = "mse",
    width: float = TWO_COLUMNS,
) -> Figure:
    """Skill of each method on each data set, as numbers on colours.

    Skill is 1 minus the geometric mean, over cells, of a method's error divided by that of seasonal
    naive, which repeats the day or the week before: 100 % for no error, below 0 for a larger error
    than that of seasonal naive. Errors are means over seeds. Columns are the data, with the horizon
    if it differs; if all runs have the same data, they are the times ahead and the whole horizon.
    Rows are sorted by the geometric mean of the ratios of a row, or by the whole horizon; the best
    is on top. Grey: not run.

    Args:
        runs: finished runs.
        metric: error of the skill; raw_… is in the data's units.
        width: width of the figure in inches.
    """
    as_curves(runs)  # Refuses no runs.
    tasks = by_task(runs)
    columns: dict[str, dict[str, pd.Series]] = {name: {} for name in tasks}
    for task, groups in tasks.items():
        for group in groups:
            errors, naive = (errors_by_cell(group, metric, naive=n) for n in (False, True))
            columns[task][group.name] = 100 * skill_by_step(errors, naive)
    if len(tasks) == 1:
        table = _by_step(columns, runs[0])
    else:
        of_task = {t: {n: found[ALL] for n, found in rows.items()} for t, rows in columns.items()}
        table = pd.DataFrame(of_task)
    ratios = 1 - (table.iloc[:, -1:] if len(tasks) == 1 else table) / 100
    means = np.log(ratios.clip(lower=1e-9)).mean(axis=1)
    name, horizons = error_name(metric, runs), {horizon_ahead(run) for run in runs}
    if len(tasks) > 1 and len(horizons) == 1:
        name = f"{name}, {horizons.pop()}".removesuffix(", ")
    fig = skill_map(table.loc[means.sort_values(kind="stable").index], name, width=width)
    title = "" if len(tasks) > 1 else next(iter(tasks))
    fig.axes[0].set_title(title, fontsize=SMALL, loc="left")
    return fig


def skill_map(
    table: pd.DataFrame, error: str, *, digits: int = 1, width: float = TWO_COLUMNS
) -> Figure:
    """Draw a table of skill in per cent against seasonal naive, NaN where it is unknown."""
    fig, (ax,) = panels(width, 1.1 + 0.2 * len(table))
    ax.set_yticks(range(len(table)), table.index)
    n_characters = max(6, int(0.75 * width * CHARACTERS_PER_INCH / len(table.columns)))
    heads = [_in_lines(str(name), n_characters) for name in table.columns]
    ax.set_xticks(range(len(heads)), heads)
    ax.set_facecolor("0.88")
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    skills = np.ma.masked_invalid(table.to_numpy())
    reach = float(np.clip(np.abs(skills).max(), 1, 100)) if skills.count() else 1.0
    # All kinds of colour vision tell these colours apart (colorbrewer2.org).
    image = ax.imshow(skills, cmap="PuOr", norm=Normalize(-reach, reach), aspect="auto")
    brightness = image.to_rgba(skills)[..., :3] @ [0.299, 0.587, 0.114]  # ITU-R BT.601
    for (row, column), skill in np.ndenumerate(table.to_numpy()):
        text = f"{skill:+.{digits if abs(skill) < 100 else 0}f}" if np.isfinite(skill) else "–"
        dark = np.isfinite(skill) and brightness[row, column] < 0.5
        shown = ax.text(column, row, text, fontsize=SMALL, color="white" if dark else "black")
        shown.set(ha="center", va="center_baseline")
    below, above = bool((skills < -reach).any()), bool((skills > reach).any())
    beyond = {(True, True): "both", (True, False): "min", (False, True): "max"}
    extend = beyond.get((below, above), "neither")
    bar = fig.colorbar(image, ax=ax, location="bottom", fraction=0.05, aspect=40, extend=extend)
    bar.ax.tick_params(labelsize=SMALL)
    bar.set_label(f"skill against {SEASONAL} in {error}, %", fontsize=SMALL)
    return fig


def _by_step(columns: Mapping[str, Mapping[str, pd.Series]], run: ForecastRun) -> pd.DataFrame:
    """Return the only task's columns by time ahead, and one for the whole horizon."""
    (rows,) = columns.values()
    table = pd.DataFrame(rows).T
    horizon = table.shape[1] - 1
    steps = range(1, horizon + 1) if horizon <= 12 else shown_steps(horizon)
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

"""Figures that compare methods: bars, distributions, ranks, settings, cells and heat maps."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from data_prep.base.errors import InputError
from stforecast.bench.charts import draw_ranks, draw_sweep, score_bars
from stforecast.bench.curves import (
    FAINT,
    SINGLE,
    Curve,
    as_curves,
    best_first,
    draw_curves,
    outer_labels,
)
from stforecast.bench.drawing import (
    CHARACTERS_PER_INCH,
    ONE_COLUMN,
    SMALL,
    TWO_COLUMNS,
    PlainFigure,
    add_legend,
    panels,
)
from stforecast.bench.run_groups import ALL, by_client
from stforecast.bench.tables import floats, short
from stforecast.comparison import names
from stforecast.comparison.errors import SEASONAL
from stforecast.comparison.rows import Row, is_pooled
from stforecast.comparison.table import (
    FEWEST_CLIENTS,
    FEWEST_METHODS,
    client_errors,
    errors_by_cell,
    rank_clients,
    skill_by_step,
)
from stforecast.forecasting.results import ForecastRun
from stforecast.plots.figure import figure


@figure
def bars(
    runs: Sequence[ForecastRun],
    *,
    metric: str = "mse",
    reference: str | None = None,
    width: float = ONE_COLUMN,
) -> Figure:
    """Test error of each variant as a bar, such as a method with and without its parts.

    Runs that differ only in the seed share one bar: their mean, with whiskers of one standard
    deviation (with n - 1). The lowest is on top. As in Figure 5 of FUELS (arXiv 2404.03702).

    Args:
        runs: finished runs.
        metric: error pooled over clients and steps; raw_… is in the data's units.
        reference: where to draw a line: the name of a bar, or a number such as a published error.
        width: width of the figure in inches.
    """
    curves = as_curves(runs)
    errors = [names.pooled_errors(curve.group.runs, metric) for curve in curves]
    curves, errors = best_first(curves, errors, np.mean)
    means = [float(some.mean()) for some in errors]
    if not np.isfinite(means).any():
        raise InputError(f"none of these runs has a finite {metric}; there is nothing to draw")
    fig, ax = score_bars(curves, errors, width)
    several = any(len(curve.group.runs) > 1 for curve in curves)
    ax.set_xlabel(names.axis_name(metric, runs, seeds=several))
    if reference is not None:
        named = {curve.group.name: mean for curve, mean in zip(curves, means, strict=True)}
        try:
            level = named[reference] if reference in named else float(reference)
        except ValueError as e:
            raise InputError(
                f"reference {reference!r} is neither a number nor a bar: {', '.join(named)}"
            ) from e
        if not np.isfinite(level):
            raise InputError(f"reference {reference!r} is not finite; name another")
        label = f"{reference}: {short(level)}" if reference in named else reference
        ax.axvline(level, color="0.2", linestyle="--", linewidth=0.9, label=label)
        add_legend(fig)
    return fig


@figure
def pareto(
    runs: Sequence[ForecastRun],
    *,
    metric: str = "mse",
    width: float = ONE_COLUMN,
) -> Figure:
    """Test error of each method against the numbers that a client sends in a round.

    A step line joins the methods to which no other is preferable, which would send no more and have
    no more error (the Pareto front). Runs that differ only in the seed share a point, their mean.
    Methods that pool the records of all clients are left out, as these send records.

    Args:
        runs: finished runs.
        metric: error pooled over clients and steps; raw_… is in the data's units.
        width: width of the figure in inches.
    """
    curves = as_curves(runs)
    pooled = [curve.group.name for curve in curves if is_pooled(curve.group.runs[0])]
    curves = [curve for curve in curves if curve.group.name not in pooled]
    points = []
    for curve in curves:
        rounds = curve.group.runs[0].rounds()
        error = names.pooled_errors(curve.group.runs, metric).mean()
        points.append((floats(rounds, "up") if len(rounds) else 0.0, error))
    if not np.isfinite(points).all(axis=1).any():
        raise InputError(f"no method here without pooled records has a finite {metric}")
    fig, ax = front_panel(points, f"test {names.error_name(metric, runs)}", width)
    for curve, (sent, error) in sorted(zip(curves, points, strict=True), key=lambda one: one[1][1]):
        label = f"{curve.group.label}: {sent:,.0f}, {short(error)}"
        ax.plot(sent, error, curve.marker, color=curve.color, markersize=5, label=label)
    left_out = f"\nNot drawn, as they pool all records: {', '.join(pooled)}" if pooled else ""
    add_legend(fig, f"At each name: floats sent, error{left_out}")
    return fig


def front_panel(
    points: Sequence[tuple[float, float]], error: str, width: float
) -> tuple[PlainFigure, Axes]:
    """Return a figure and its panel for points of floats sent and `error`, with their front."""
    fig, (ax,) = panels(width, SINGLE)
    ax.step(*np.transpose(pareto_front(points)), where="post", color=FAINT, linewidth=1.0)
    ax.set_xscale("symlog", linthresh=10)
    ax.set_xlim(-2, max(10, 2 * max(sent for sent, _ in points)))
    ax.set_xlabel("floats that a client sends in a round")
    ax.set_ylabel(error)
    return fig, ax


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other point matches in both numbers, by the first number.

    >>> pareto_front([(0, 3.0), (5, 1.0), (5, 2.0), (9, 1.5)])
    [(0, 3.0), (5, 1.0)]
    """
    front: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if np.isfinite(y) and (not front or y < front[-1][1]):
            front.append((x, y))
    return front


@figure
def cdf(runs: Sequence[ForecastRun], *, metric: str = "mse", width: float = ONE_COLUMN) -> Figure:
    """Distribution of the test error over clients: the share of clients with an error of at most x.

    The clients of runs that differ only in the seed are pooled. Curves are sorted by the mean, the
    lowest first; more than six have a panel each. The dot marks the median; the mean
    is the area to the left of the curve. As in Figure 3 (bottom) of FUELS (arXiv 2404.03702).

    Args:
        runs: finished runs.
        metric: error of each client over all steps; raw_… is in the data's units.
        width: width of the figure in inches.
    """
    curves = as_curves(runs)
    tables = [pd.concat([names.error_rows(r, metric) for r in c.group.runs]) for c in curves]
    pooled = [by_client(table)["value"].to_numpy() for table in tables]
    if not any(np.isfinite(errors).any() for errors in pooled):
        raise InputError(f"no client of these runs has a finite {metric}; there is nothing to draw")
    curves, pooled = best_first(curves, pooled, names.finite_mean)
    labels = [_label(curve, errors) for curve, errors in zip(curves, pooled, strict=True)]

    def draw(ax: Axes, curve: Curve[ForecastRun], errors: np.ndarray, label: str) -> None:
        known = np.sort(errors[np.isfinite(errors)])
        if len(known) and not curve.faint:
            ax.plot(np.median(known), 0.5, ".", color=curve.color, markersize=7)
        shares = np.arange(len(known) + 1) / max(1, len(known))
        ax.step([0.0, *known], shares, where="post", label=label, **curve.line)

    fig, axes = draw_curves(curves, pooled, labels, draw, width)
    for ax in axes:
        ax.set_xlim(left=0)
        ax.set_ylim(0, 1.02)
    name = f"test {names.error_name(metric, runs)}, per client"
    outer_labels(axes, name, "share of clients", width)
    add_legend(fig)
    return fig


def _label(curve: Curve[ForecastRun], errors: np.ndarray) -> str:
    known, label = errors[np.isfinite(errors)], curve.group.label
    if len(known):
        label += f": median {short(np.median(known))}, mean {short(known.mean())}"
    if unknown := len(errors) - len(known):
        label += f" ({unknown} of {len(errors)} clients have no finite error)"
    return label


@figure
def critical_difference(
    runs: Sequence[ForecastRun], *, metric: str = "mse", width: float = TWO_COLUMNS
) -> Figure:
    """Mean ranks of methods over clients, and bars across those that do not differ.

    A critical difference diagram: methods are ranked at each client of each data set by the mean
    error over seeds; bars join methods whose mean ranks are closer than the critical difference
    (Nemenyi). Only main methods are ranked, not ablations in tables of their own, since each
    further method makes the test weaker. As in Figure 1 of Demšar (JMLR 7, 2006).

    Args:
        runs: finished runs.
        metric: error of each client over all steps; raw_… is in the data's units.
        width: width of the figure in inches.
    """
    as_curves(runs)  # Refuses no runs.
    main = [run for run in runs if not run.table]
    for run in main:
        names.error_rows(run, metric)
    tasks = names.by_task(main)
    tables = [client_errors([Row(group) for group in rows], metric) for rows in tasks.values()]
    errors = pd.concat(tables, join="inner", keys=tasks) if tables else pd.DataFrame()
    ranking = rank_clients(errors, metric)
    if ranking is None:
        on = "" if len(tasks) < 2 else f" on all {len(tasks)} data sets"
        raise InputError(
            f"{errors.shape[1]} main methods{on} with {len(errors)} clients; ranks need at least "
            f"{FEWEST_METHODS} methods and {FEWEST_CLIENTS} clients"
        )
    fig = draw_ranks(ranking, list(errors.columns), width)
    absent = {name for table in tables for name in table.columns} - set(errors.columns)
    absent |= {run.label for run in runs if run.table}
    left_out = f"\nNot ranked: {', '.join(sorted(absent))}" if absent else ""
    add_legend(fig, f"{ranking}{left_out}")
    return fig


@figure
def sweep(
    runs: Sequence[ForecastRun],
    *,
    setting: str | None = None,
    metric: str = "mse",
    width: float = ONE_COLUMN,
) -> Figure:
    """Test error against one setting, such as tau: one line for each method.

    Each point is the mean of the runs that differ only in the seed, in a band of one standard
    deviation (with n - 1). Runs are grouped into lines by method and other settings, not by label.
    A method without the setting is a horizontal line. As in Figure 6 of FUELS (arXiv 2404.03702).

    Args:
        runs: finished runs.
        setting: numeric setting on the x axis, logarithmic if its values span more than two
            decades; optional if the runs differ in only one number.
        metric: error pooled over clients and steps; raw_… is in the data's units.
        width: width of the figure in inches.
    """
    return draw_sweep(
        runs,
        setting,
        lambda some: names.pooled_errors(some, metric),
        lambda several: names.axis_name(metric, runs, seeds=several),
        width,
    )


@figure
def cells(
    runs: Sequence[ForecastRun],
    *,
    metric: str = "mse",
    width: float = TWO_COLUMNS,
) -> Figure:
    """Error of each method at each cell, as a ratio to the error of seasonal naive at that cell.

    A point for each cell, sorted from the lowest ratio at the bottom of a row to the highest at its
    top; a bar at the median. Rows are sorted by their medians. At the right: the share of cells
    with a lower error than seasonal naive, and the cells with the highest ratios. Errors are means
    over seeds.

    Args:
        runs: runs tested on the same targets.
        metric: error of each cell over all steps; raw_… is in the data's units.
        width: width of the figure in inches.
    """
    curves = as_curves(runs)
    names.refuse_different_tests(runs)
    base = errors_by_cell(curves[0].group, metric, naive=True)[ALL]
    ratios = [errors_by_cell(curve.group, metric)[ALL] / base for curve in curves]
    order = np.argsort([ratio.median() for ratio in ratios], kind="stable")
    fig, (ax,) = panels(width, 0.6 + 0.32 * len(curves))
    ax.set_xscale("log")
    ax.axvline(1, color="0.2", linestyle="--", linewidth=0.9)
    for row, place in enumerate(order):
        _draw_row(ax, row, curves[place], ratios[place])
    labels = [textwrap.fill(curves[place].group.label, int(5 * width)) for place in order]
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")
    low, high = ax.get_xlim()
    ratios_shown = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100)
    ax.xaxis.set_major_locator(FixedLocator(ratios_shown) if high > 2 * low else MaxNLocator(6))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(f"test {names.error_name(metric, runs)} of a cell, divided by that of {SEASONAL}")
    return fig


def _draw_row(ax: Axes, row: int, curve: Curve[ForecastRun], ratios: pd.Series) -> None:
    known = ratios[np.isfinite(ratios) & (ratios > 0)].sort_values(kind="stable")
    n = len(known)
    heights = row + 0.35 - 0.7 * (np.arange(n) + 0.5) / max(n, 1)
    (points,) = ax.plot(known, heights, ".", color=curve.color, label=curve.group.label)
    points.set(markersize=4, alpha=0.6, markeredgewidth=0)
    if n:
        ax.plot([known.median()] * 2, [row - 0.4, row + 0.4], color="0.1", linewidth=1.2)
    seen = ratios.dropna()
    worst = ", ".join(str(cell) for cell in seen.nlargest(3).index)
    text = f"lower in {(seen < 1).mean():.0%} of cells\nhighest: {worst}" if len(seen) else "none"
    ax.text(1.01, row, text, va="center", fontsize=SMALL - 1, transform=ax.get_yaxis_transform())


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
    tasks = names.by_task(runs)
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
    name, horizons = names.error_name(metric, runs), {names.horizon_ahead(run) for run in runs}
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
        text = text if text.strip("+-0.") else text[1:]  # 0 has no sign.
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
    steps = range(1, horizon + 1) if horizon <= 12 else names.shown_steps(horizon)
    heads = {str(step): f"{names.time_ahead(step, run)} ahead" for step in steps}
    if horizon == 1:
        return table[["1"]].rename(columns=heads)
    return table[[*heads, ALL]].rename(columns={**heads, ALL: names.horizon_ahead(run)})


def _in_lines(text: str, n_characters: int) -> str:
    r"""Divide the head of a column into lines; a number stays with its unit, a word whole.

    >>> _in_lines("milan, up to 24 h ahead", 12), _in_lines("seasonal_day", 10)
    ('milan, up to\n24 h ahead', 'seasonal_\nday')
    """
    kept = re.sub(r"(?<=\d) ", "\N{NO-BREAK SPACE}", text).replace("_", "_ ")
    lines = textwrap.fill(kept, n_characters).replace("_ ", "_")
    return lines.replace("\N{NO-BREAK SPACE}", " ")

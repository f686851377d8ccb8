"""Figures of losses by round and by communication."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from data_prep.base.errors import InputError
from stforecast.bench import drawing
from stforecast.bench.curves import (
    MOST_TOGETHER,
    PANEL,
    UNNAMED,
    Curve,
    as_curves,
    columns,
    title_panel,
)
from stforecast.forecasting.results import ForecastRun
from stforecast.plots.figure import figure_of_training

LOSSES = {"training": "train_task_loss", "validation": "validation_loss"}
"""Losses of the task, without a method's further terms, and their columns in `rounds.csv`."""


@figure_of_training
def communication(runs: Sequence[ForecastRun], *, width: float = drawing.ONE_COLUMN) -> Figure:
    """Training loss against the bytes sent and received by all clients, summed over the rounds.

    Each run is a line; runs that differ only in the seed have the same colour. Training losses of
    different kinds cannot be compared and have a panel each; so do more than six methods. A method
    that sends nothing is a horizontal line at its last loss; runs without the loss, such as
    reference forecasters, are named below the panel. As in Figure 4 of FUELS (arXiv 2404.03702).

    Args:
        runs: finished runs.
        width: width of the figure in inches.
    """
    tables, lacking = _with_loss(as_curves(runs), "training")
    if not any(sent_by_round(table)[-1] > 0 for _, table in tables):
        raise InputError(
            "none of these runs has a training loss and sends anything; draw `rounds` or `cdf`"
        )

    def draw(ax: Axes, own: Table, losses: np.ndarray, label: str) -> None:
        curve, table = own
        if (n_bytes := sent_by_round(table))[-1] > 0:
            _loss_line(ax, n_bytes, losses, curve, label)
        else:
            level = losses[np.isfinite(losses)][-1]
            ax.axhline(level, label=f"{label}, sends nothing", **curve.line)

    def scale(ax: Axes) -> None:
        ax.set_xscale("log")
        ratio = float(ax.dataLim.xmax) / float(ax.dataLim.minposx)
        digits = [1] if ratio > 100 else [1, 2, 5] if ratio > 4 else [1, 2, 3, 4, 6, 8]
        ax.xaxis.set_major_locator(LogLocator(subs=digits))
        ax.xaxis.set_major_formatter(EngFormatter("B"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_xlabel("sent and received by all clients")

    note = _not_drawn({"training": lacking})
    return _draw_views(_views({"training": tables}), draw, scale, width, note)


@figure_of_training
def rounds(runs: Sequence[ForecastRun], *, width: float = drawing.TWO_COLUMNS) -> Figure:
    """Training and validation loss by round.

    Each run is a line; runs that differ only in the seed have the same colour. Training losses of
    different kinds cannot be compared and have a panel each. With more than six methods, each has
    a panel of its own for its validation loss. If some methods have many more rounds than others,
    the axis of rounds is logarithmic. Runs without a loss, such as reference forecasters, are named
    below the panels.

    Args:
        runs: finished runs.
        width: width of the figure in inches.
    """
    curves = as_curves(runs)
    found = {loss: _with_loss(curves, loss) for loss in LOSSES}
    shown = {loss: tables for loss, (tables, _) in found.items() if tables}
    if not shown:
        raise InputError("none of these runs has rounds; draw `predictions`, `cdf` or `horizon`")
    if len(shown) > 1 and max(map(len, shown.values())) > MOST_TOGETHER:
        del shown["training"], found["training"]
    absent = {loss: lacking for loss, (_, lacking) in found.items()}

    def draw(ax: Axes, own: Table, losses: np.ndarray, label: str) -> None:
        curve, table = own
        _loss_line(ax, table["round"].to_numpy(), losses, curve, label)

    def scale(ax: Axes) -> None:
        lengths = [np.size(line.get_ydata()) for line in ax.lines]
        drawing.count_axis(ax, "round", logarithmic=max(lengths) > 20 * min(lengths))

    return _draw_views(_views(shown), draw, scale, width, _not_drawn(absent))


Table = tuple[Curve[ForecastRun], pd.DataFrame]
"""A curve, and the rounds of one of its runs."""


@dataclass(frozen=True)
class View:
    """Losses that can be compared: their column of `rounds.csv`, and the name of their axis."""

    column: str
    name: str
    tables: list[Table]


def _views(shown: Mapping[str, Sequence[Table]]) -> list[View]:
    """Divide losses by kind: the validation loss is always the MSE, that of training may not be."""
    kinds = {"mse": "MSE", "mae": "MAE", "huber": "Huber loss", "quantile": "pinball loss"}
    views: dict[str, View] = {}
    for loss, tables in shown.items():
        for curve, table in tables:
            trained_on = str(curve.group.runs[0].settings.get("loss", "mse"))
            kind = "mse" if loss == "validation" else trained_on
            name = f"{loss} {kinds.get(kind, f'loss ({kind})')} of z-scores"
            views.setdefault(name, View(LOSSES[loss], name, [])).tables.append((curve, table))
    return [*views.values()]


def _draw_views(
    views: Sequence[View],
    draw: Callable[[Axes, Table, np.ndarray, str], None],
    scale: Callable[[Axes], None],
    width: float,
    note: str,
) -> Figure:
    """Draw a panel for each view, or for each method if there are more than six.

    `draw` draws the losses of a run with a label, `scale` formats the x axis.
    """
    several = len({curve.group.name for view in views for curve, _ in view.tables}) > MOST_TOGETHER
    pairs: list[tuple[View, str]] = []
    for view in views:  # The lowest last loss comes first.
        last = {curve.group.name: table[view.column].iloc[-1] for curve, table in view.tables}
        order = pd.Series(last).fillna(np.inf).sort_values(kind="stable").index
        pairs += [(view, own) for own in (order if several else [""])]
    in_row = columns(width) if several else 1 if width <= drawing.ONE_COLUMN else min(2, len(pairs))
    height = PANEL if several else 2.0
    fig, axes = drawing.panels(width, height, len(pairs), n_columns=in_row)
    for ax, (view, own) in zip(axes, pairs, strict=True):
        for curve, table in view.tables:
            losses = table[view.column].to_numpy()
            if not several:
                draw(ax, (curve, table), losses, curve.group.label)
            elif curve.group.name == own:
                draw(ax, (curve.alone, table), losses, UNNAMED)
                title_panel(ax, curve.group.label, width / in_row)
            else:
                draw(ax, (curve.behind, table), losses, UNNAMED)
        scale(ax)
        ax.set_ylabel(textwrap.fill(view.name, int(0.8 * drawing.CHARACTERS_PER_INCH * height)))
        ax.set_xlabel(
            textwrap.fill(ax.get_xlabel(), int(drawing.CHARACTERS_PER_INCH * width / in_row))
        )
    for i, (ax, (view, _)) in enumerate(zip(axes, pairs, strict=True)):
        if several and i // in_row < (len(axes) - 1) // in_row:
            ax.set_xlabel("")
        if several and i % in_row and view is pairs[i - 1][0]:
            ax.set_ylabel("")
    drawing.add_legend(fig, note)
    return fig


def sent_by_round(table: pd.DataFrame) -> np.ndarray:
    """Return the bytes sent and received until the end of each round."""
    return (table["bytes_down"] + table["bytes_up"]).cumsum().to_numpy(float)


def _with_loss(curves: Sequence[Curve[ForecastRun]], loss: str) -> tuple[list[Table], list[str]]:
    """Return `rounds.csv` of the runs with a finite loss, and the names of the others."""
    tables, absent = [], []
    for curve in curves:
        lacking = []
        for run in curve.group.runs:
            table = run.rounds()
            if np.isfinite(table[LOSSES[loss]].to_numpy(dtype=float)).any():
                tables.append((curve, table))
            else:
                lacking.append(curve.group.run_label(run))
        absent += [curve.group.name] if len(lacking) == len(curve.group.runs) else lacking
    return tables, absent


def _not_drawn(absent: Mapping[str, Sequence[str]]) -> str:
    """Return one line for each list of curves that lack the same losses.

    >>> _not_drawn({"training": ["ridge"], "validation": ["ridge"]})
    'Not drawn, as they have no training or validation loss: ridge'
    """
    lacking: dict[str, list[str]] = {}
    for loss, names in absent.items():
        lacking.setdefault(", ".join(names), []).append(loss)
    return "\n".join(
        f"Not drawn, as they have no {' or '.join(losses)} loss: {names}"
        for names, losses in lacking.items()
        if names
    )


def _loss_line(
    ax: Axes, x: np.ndarray, losses: np.ndarray, curve: Curve[ForecastRun], label: str
) -> None:
    """Draw a line with a dot at its end, so that a single round is visible too.

    It connects the rounds that have a loss: not each round may be validated.
    """
    known = ~np.isnan(losses)
    x, losses = x[known], losses[known]
    ax.plot(x, losses, marker=".", markevery=[-1], label=label, **curve.line)

"""Figures of losses by round and by communication."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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

HEIGHT = 2.0

MOST_TIMES = 20
"""Ratio of the longest run's rounds to the shortest's above which their axis is logarithmic."""


@figure_of_training
def communication(
    runs: Sequence[ForecastRun],
    *,
    loss: Literal["training", "validation"] = "training",
    width: float = drawing.ONE_COLUMN,
) -> Figure:
    """Loss against the bytes sent and received by all clients, summed over the rounds.

    Each run is a line; runs that differ only in the seed have the same colour. Training losses of
    different kinds cannot be compared and have a panel each; so do more than six methods. A method
    that sends nothing is a horizontal line at its last loss; runs without the loss, such as
    reference forecasters, are named below the panel. As in Figure 4 of FUELS (arXiv 2404.03702).

    Args:
        runs: finished runs.
        loss: training or validation loss.
        width: width of the figure in inches.
    """
    found = [_with_loss(as_curves(runs), loss)]
    views = _views(found, [loss])
    traffic = [n[n > 0] for view in views for n in map(_bytes, view.tables) if n[-1] > 0]
    if not traffic:
        raise InputError(
            f"none of these runs has a {loss} loss and sends anything; draw `rounds` or `cdf`"
        )

    def draw(ax: Axes, curve: Curve[ForecastRun], table: pd.DataFrame, label: str) -> None:
        n_bytes, losses = _bytes((curve, table)), table[LOSSES[loss]].to_numpy()
        if n_bytes[-1] > 0:
            _loss_line(ax, n_bytes, losses, curve, label)
        else:
            level = losses[np.isfinite(losses)][-1]
            ax.axhline(level, label=f"{label}, sends nothing", **curve.line)

    def scale(ax: Axes) -> None:
        drawing.byte_axis(ax, np.concatenate(traffic), "sent and received by all clients")

    return _draw_views(views, draw, scale, width, _not_drawn({loss: found[0][1]}))


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
    shown = [loss for loss, (tables, _) in found.items() if tables]
    if not shown:
        raise InputError("none of these runs has rounds; draw `predictions`, `cdf` or `horizon`")
    if len(shown) > 1 and max(len(found[loss][0]) for loss in shown) > MOST_TOGETHER:
        shown = ["validation"]
        del found["training"]
    absent = {loss: lacking for loss, (_, lacking) in found.items()}
    views = _views([found[loss] for loss in shown], shown)
    column = {view.name: LOSSES[view.loss] for view in views}

    def draw(ax: Axes, curve: Curve[ForecastRun], table: pd.DataFrame, label: str) -> None:
        losses = table[column[ax.get_ylabel()]].to_numpy()
        _loss_line(ax, table["round"].to_numpy(), losses, curve, label)

    def scale(ax: Axes) -> None:
        lengths = [np.size(line.get_ydata()) for line in ax.lines]
        drawing.count_axis(ax, "round", logarithmic=max(lengths) > MOST_TIMES * min(lengths))

    return _draw_views(views, draw, scale, width, _not_drawn(absent))


Table = tuple[Curve[ForecastRun], pd.DataFrame]
"""A curve, and the rounds of one of its runs."""


@dataclass(frozen=True)
class View:
    """Losses of runs that compare, training or validation, and the name of their axis."""

    loss: str
    name: str
    tables: Sequence[Table]


def _views(found: Sequence[tuple[list[Table], list[str]]], losses: Sequence[str]) -> list[View]:
    """Divide losses by kind: the validation loss is always the MSE, that of training may not be."""
    views: dict[tuple[str, str], list[Table]] = {}
    for loss, (tables, _) in zip(losses, found, strict=True):
        for curve, table in tables:
            trained_on = str(curve.group.runs[0].settings.get("loss", "mse"))
            kind = "mse" if loss == "validation" else trained_on
            views.setdefault((loss, kind), []).append((curve, table))
    return [
        View(loss, f"{loss} {_KINDS.get(kind, f'loss ({kind})')} of z-scores", tables)
        for (loss, kind), tables in views.items()
    ]


_KINDS = {"mse": "MSE", "mae": "MAE", "huber": "Huber loss", "quantile": "pinball loss"}


def _draw_views(
    views: Sequence[View],
    draw: Callable[[Axes, Curve[ForecastRun], pd.DataFrame, str], None],
    scale: Callable[[Axes], None],
    width: float,
    note: str,
) -> Figure:
    """Draw a panel for each view, or for each method if there are more than six."""
    several = len({curve.group.name for view in views for curve, _ in view.tables}) > MOST_TOGETHER
    pairs = [
        (view, own)
        for view in views
        for own in (_by_loss(view.tables, LOSSES[view.loss]) if several else [""])
    ]
    in_row = columns(width) if several else 1 if width <= drawing.ONE_COLUMN else min(2, len(pairs))
    height = PANEL if several else HEIGHT
    fig, axes = drawing.panels(width, height, len(pairs), n_columns=in_row)
    for ax, (view, own) in zip(axes, pairs, strict=True):
        ax.set_ylabel(view.name)
        for curve, table in view.tables:
            if not several:
                draw(ax, curve, table, curve.group.label)
            elif curve.group.name == own:
                draw(ax, curve.alone, table, UNNAMED)
                title_panel(ax, curve.group.label, width / in_row)
            else:
                draw(ax, curve.behind, table, UNNAMED)
        scale(ax)
        ax.set_ylabel(textwrap.fill(view.name, int(0.8 * drawing.CHARACTERS_PER_INCH * height)))
        ax.set_xlabel(
            textwrap.fill(ax.get_xlabel(), int(drawing.CHARACTERS_PER_INCH * width / in_row))
        )
    if several:
        _trim(axes, in_row)
    drawing.add_legend(fig, note)
    return fig


def _trim(axes: Sequence[Axes], in_row: int) -> None:
    """Leave out what small panels repeat: labels of inner axes with equal scales."""
    names = [ax.get_ylabel() for ax in axes]
    for i, ax in enumerate(axes):
        if i // in_row < (len(axes) - 1) // in_row:
            ax.set_xlabel("")
        if i % in_row and names[i] == names[i - 1]:
            ax.set_ylabel("")


def _by_loss(tables: Sequence[Table], column: str) -> list[str]:
    last = {curve.group.name: table.iloc[-1] for curve, table in tables}
    return sorted(last, key=lambda name: float(np.nan_to_num(last[name][column], nan=np.inf)))


def _bytes(table: Table) -> np.ndarray:
    """Return the bytes sent and received until the end of each round."""
    return (table[1]["bytes_down"] + table[1]["bytes_up"]).cumsum().to_numpy()


def _with_loss(
    curves: Sequence[Curve[ForecastRun]], loss: str
) -> tuple[list[tuple[Curve[ForecastRun], pd.DataFrame]], list[str]]:
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

"""Figures of losses by round and by communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from data_prep.errors import InputError
from data_prep.registry import listed
from stforecast.bench.curves import Curve, as_curves
from stforecast.bench.drawing import (
    ONE_COLUMN,
    TWO_COLUMNS,
    add_legend,
    byte_axis,
    count_axis,
    panels,
)
from stforecast.results import ForecastRun

LOSSES = {"training": "train_task_loss", "validation": "validation_loss"}
"""Losses of the task, without a method's further terms, and their columns in `rounds.csv`."""


@listed
def communication(
    runs: Sequence[ForecastRun],
    *,
    loss: Literal["training", "validation"] = "training",
    width: float = ONE_COLUMN,
) -> Figure:
    """Loss against the bytes sent and received by all clients, summed over the rounds.

    Each run is a line in the colour of its curve. A method that sends nothing is a level line at
    its last loss; runs without the loss, such as reference forecasters, are named below the panel.
    As Figure 4 of FUELS (arXiv 2404.03702).

    Args:
        runs: finished runs.
        loss: training or validation loss.
        width: width of the figure in inches.

    Raises:
        InputError: if no run has this loss and sends anything.
    """
    fig, (ax,) = panels(width, 2.3)
    tables, absent = _with_loss(as_curves(runs), loss)
    traffic = []
    for curve, table in tables:
        n_bytes = (table["bytes_down"] + table["bytes_up"]).cumsum().to_numpy()
        losses = table[LOSSES[loss]].to_numpy()
        if n_bytes[-1] > 0:
            _loss_line(ax, n_bytes, losses, curve)
            traffic.append(n_bytes[n_bytes > 0])
        else:
            ax.axhline(
                losses[np.isfinite(losses)][-1], label=f"{curve.label}, sends nothing", **curve.line
            )
    if not traffic:
        raise InputError(
            f"none of these runs has a {loss} loss and sends anything; draw `rounds` or `cdf`"
        )
    byte_axis(ax, np.concatenate(traffic), "sent and received by all clients")
    ax.set_ylabel(_loss_name(loss, runs))
    add_legend(fig, "\n".join(filter(None, [_not_drawn({loss: absent}), _kinds(loss, tables)])))
    return fig


@listed
def rounds(runs: Sequence[ForecastRun], *, width: float = TWO_COLUMNS) -> Figure:
    """Training and validation loss by round.

    Each run is a line in the colour of its curve; runs without a loss, such as reference
    forecasters, are named below the panels.

    Args:
        runs: finished runs.
        width: width of the figure in inches.

    Raises:
        InputError: if no run has rounds.
    """
    curves = as_curves(runs)
    found = {loss: _with_loss(curves, loss) for loss in LOSSES}
    shown = [loss for loss, (tables, _) in found.items() if tables]
    if not shown:
        raise InputError("none of these runs has rounds; draw `predictions`, `cdf` or `horizon`")
    fig, axes = panels(width, 2.0, len(shown), n_columns=len(shown) if width > ONE_COLUMN else 1)
    for ax, loss in zip(axes, shown, strict=True):
        for curve, table in found[loss][0]:
            _loss_line(ax, table["round"].to_numpy(), table[LOSSES[loss]].to_numpy(), curve)
        count_axis(ax, "round")
        ax.set_ylabel(_loss_name(loss, runs))
    absent = _not_drawn({loss: lacking for loss, (_, lacking) in found.items()})
    kinds = _kinds("training", found["training"][0])
    add_legend(fig, "\n".join(filter(None, [absent, kinds])))
    return fig


def _loss_name(loss: str, runs: Sequence[ForecastRun]) -> str:
    """Return the axis label; validation uses the MSE, but some runs train on another loss."""
    own = {_trained_on(run) for run in runs}
    if loss == "training" and own != {"mse"}:
        return f"training loss of z-scores\n({', '.join(sorted(own))})"
    return f"{loss} MSE of z-scores"


def _trained_on(run: ForecastRun) -> str:
    return str(run.settings.get("loss", "mse"))


def _kinds(loss: str, tables: Sequence[tuple[Curve[ForecastRun], pd.DataFrame]]) -> str:
    """Say which curves have which training loss if there are several, as these do not compare."""
    names: dict[str, list[str]] = {}
    for curve, _ in tables if loss == "training" else []:
        of_kind = names.setdefault(_trained_on(curve.runs[0]), [])
        of_kind += [] if curve.name in of_kind else [curve.name]
    if len(names) < 2:
        return ""
    parts = "; ".join(f"{kind}: {', '.join(of_kind)}" for kind, of_kind in names.items())
    return f"Training losses of different kinds do not compare. {parts}"


def _with_loss(
    curves: Sequence[Curve[ForecastRun]], loss: str
) -> tuple[list[tuple[Curve[ForecastRun], pd.DataFrame]], list[str]]:
    """Return `rounds.csv` of the runs with a finite loss, and the names of the others."""
    tables, absent = [], []
    for curve in curves:
        lacking = []
        for run in curve.runs:
            table = run.rounds()
            if np.isfinite(table[LOSSES[loss]].to_numpy(dtype=float)).any():
                tables.append((curve, table))
            else:
                lacking.append(curve.run_label(run))
        absent += [curve.name] if len(lacking) == len(curve.runs) else lacking
    return tables, absent


def _not_drawn(absent: Mapping[str, Sequence[str]]) -> str:
    """Return one line for each list of curves that lack the same losses.

    >>> _not_drawn({"training": ["ridge"], "validation": ["ridge"]})
    'Not drawn, having no training or validation loss: ridge'
    """
    lacking: dict[str, list[str]] = {}
    for loss, names in absent.items():
        lacking.setdefault(", ".join(names), []).append(loss)
    return "\n".join(
        f"Not drawn, having no {' or '.join(losses)} loss: {names}"
        for names, losses in lacking.items()
        if names
    )


def _loss_line(ax: Axes, x: np.ndarray, losses: np.ndarray, curve: Curve[ForecastRun]) -> None:
    """Draw a line with a dot at its end, so that a single round is visible too."""
    ax.plot(x, losses, marker=".", markevery=[-1], label=curve.label, **curve.line)

"""What all figures of forecasts have in common: their input, and options of their look."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from data_prep.errors import InputError, for_python
from data_prep.registry import listed
from stforecast.bench.curves import labels_of
from stforecast.bench.drawing import finish_figure
from stforecast.bench.look import Look, current, looking
from stforecast.bench.plain_figure import PlainFigure, write_plainly
from stforecast.bench.run_groups import group_runs
from stforecast.plots.inputs import as_runs
from stforecast.plots.part import parts_of
from stforecast.plots.scores import pooled_errors
from stforecast.results import ForecastRun


def part(*, cells: str | None = None, start: str | None = None, end: str | None = None) -> None:
    """Take the options of a part of the test part, which a figure of the whole refuses.

    Args:
        cells: ids of the cells to draw, separated by commas; by default all.
        start: first local time of a target, such as 2013-12-24 or "2013-12-24 06:00".
        end: end of the times of targets (exclusive).
    """


def common(
    *,
    top: int | None = None,
    highlight: str | None = None,
    height: float | None = None,
    title: str = "",
) -> None:
    """Take the options that all figures have.

    Args:
        top: draw only this many methods, those with the lowest test error; by default all.
        highlight: names of methods to draw in colour, separated by commas; all others are grey.
        height: height of the figure in inches; by default as its content needs.
        title: title above the figure.
    """


AX = "axes to draw on, from Python; several panels share their place. By default a new figure."


def figure(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Make a function of runs a figure with the common options, known by its name.

    Args:
        draw: function of a sequence of `ForecastRun` with options by keyword. One without `cells`
            gets it, and `start` and `end`, and is given runs of that part alone.
    """
    return _figure(draw, has_parts=True)


def figure_of_training(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Make a function of runs a figure as `figure` does, which has no parts to draw."""
    return _figure(draw, has_parts=False)


def _figure(draw: Callable[..., Figure], has_parts: bool) -> Callable[..., Figure]:
    own = inspect.signature(draw)
    draws_parts = "cells" in own.parameters

    @listed
    @for_python
    @functools.wraps(draw)
    def drawn(
        runs: Any, *, ax: Axes | None = None, top: int | None = None, highlight: Any = None,
        height: float | None = None, title: str = "", **options: Any,
    ) -> Figure:  # fmt: skip
        found = as_runs(runs)
        among = (*current().among, *labels_of(found))
        if not draws_parts:
            shown = {name: options.pop(name, None) for name in inspect.signature(part).parameters}
            if not has_parts:
                _refuse(draw.__name__, shown)
            found = parts_of(found, **shown)
        if top is not None:
            found = best(found, top, str(options.get("metric", "mse")))
        with looking(Look(ax, _names(highlight), among)):
            fig = draw(found, **options)
        if isinstance(fig, PlainFigure):
            finish_figure(fig, height, title)
        else:
            write_plainly(fig)
            if ax is not None and title:
                fig.axes[0].set_title(title)
        return fig

    extra: list[Callable[..., None]] = [common] if draws_parts else [part, common]
    more = [p for taken in extra for p in inspect.signature(taken).parameters.values()]
    at = inspect.Parameter("ax", inspect.Parameter.KEYWORD_ONLY, default=None)
    parameters = [*own.parameters.values(), *more, at]
    vars(drawn)["__signature__"] = own.replace(parameters=parameters)
    hints = [typing.get_type_hints(taken) for taken in (draw, *extra)]
    drawn.__annotations__ = {**{n: t for some in hints for n, t in some.items()}, "ax": Axes | None}
    drawn.__doc__ = _documented(draw.__doc__ or "", extra)
    return drawn


def _refuse(name: str, shown: Mapping[str, str | None]) -> None:
    """Refuse a part of a figure that has none.

    Raises:
        InputError: if a part is wanted.
    """
    if any(value is not None for value in shown.values()):
        raise InputError(
            f"{name} shows the training or the inside of models, not errors of chosen cells and "
            "times; leave out these options"
        )


def best(runs: Sequence[ForecastRun], n: int, metric: str) -> list[ForecastRun]:
    """Return the runs of the methods with the lowest test errors, in the order given.

    Raises:
        InputError: if `n` is below 1, or the metric is unknown.
    """
    if n < 1:
        raise InputError(f"top is {n}; draw at least 1 method")
    groups = group_runs(runs)
    errors = [pooled_errors(group.runs, metric).mean() for group in groups]
    chosen = np.argsort(errors, kind="stable")[:n]
    kept = {id(run) for i in chosen for run in groups[i].runs}
    return [run for run in runs if id(run) in kept]


def _names(highlight: Any) -> tuple[str, ...]:
    if highlight is None:
        return ()
    names = highlight.split(",") if isinstance(highlight, str) else highlight
    return tuple(str(name).strip() for name in names)


def _documented(doc: str, extra: Sequence[Callable[..., None]]) -> str:
    """Return a docstring with the common options among its arguments."""
    doc = inspect.cleandoc(doc)
    bodies = (inspect.cleandoc(f.__doc__ or "").partition("Args:\n")[2].rstrip() for f in extra)
    body = "\n".join(bodies)
    before, args, rest = doc.partition("\nArgs:\n")
    own, end, after = rest.partition("\n\n")
    return f"{before}{args}{own}\n{body}\n    ax: {AX}{end}{after}" if args else doc

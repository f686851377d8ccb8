"""The common base of all figures of forecasts: their inputs, and options of their look."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from data_prep.base.errors import InputError
from data_prep.base.registry import listed
from stforecast.bench import drawing
from stforecast.bench.curves import labels_of
from stforecast.bench.run_groups import group_runs
from stforecast.forecasting.results import ForecastRun
from stforecast.plots.excerpt import RunInMemory, on_one_scale, parts_of

if TYPE_CHECKING:
    from stforecast.data.series import Series
    from stforecast.forecasting.forecaster import Forecaster


def model_run(
    folder: Path, history: str | os.PathLike[str], events: Path | None = None
) -> ForecastRun:
    """Return the run of a saved model, labelled by its folder and tested on all of a history.

    `events` is the table of its events, for a model that reads events.
    """
    from stforecast.forecasting.forecaster import Forecaster

    forecaster = Forecaster.load(folder)
    series = forecaster.read(history, events)
    tested = [forecaster.config.window.reach, len(series.values) - 1]
    first, last = series.calendar.local_times(np.array(tested))
    about = {
        "settings": forecaster.asked.flat(),
        "label": folder.name,
        "data": str(history),
        "service": forecaster.model_.service,
        "units": forecaster.model_.units,
        "parts": {"test": {"first": str(first), "last": str(last)}},
    }
    return _run_of(folder, about, forecaster, series)


def _run_of(
    folder: Path, about: dict[str, Any], forecaster: Forecaster, series: Series | None = None
) -> ForecastRun:
    """Return a run of a forecaster, by default on the test part of its own data."""
    return RunInMemory(
        folder,
        about,
        functools.cache(lambda: forecaster.evaluate(series)),
        lambda: forecaster.rounds_,
        functools.cache(lambda: forecaster.test_forecasts(series)),
    )


def as_runs(things: Any) -> list[ForecastRun]:
    """Return runs of whatever a figure takes.

    That is one or several of: finished runs, folders of runs, fitted forecasters; or a dictionary
    of such by the names to draw them under.
    """
    if isinstance(things, Mapping):
        return [
            dataclasses.replace(run, about={**run.about, "label": str(name)})
            for place, (name, thing) in enumerate(things.items())
            for run in _runs_of(thing, place)
        ]
    single = isinstance(things, ForecastRun | str | os.PathLike)
    several = [things] if single or not isinstance(things, Iterable) else list(things)
    return [run for place, thing in enumerate(several) for run in _runs_of(thing, place)]


def _runs_of(thing: Any, place: int) -> list[ForecastRun]:
    if isinstance(thing, ForecastRun):
        return [thing]
    if isinstance(thing, str | os.PathLike):
        return ForecastRun.find([thing])
    from stforecast.forecasting.forecaster import Forecaster

    if isinstance(thing, Forecaster):
        from stforecast.forecasting.runs import facts_of

        about = {"label": thing.config.method, "data": thing.data_.series.name, **facts_of(thing)}
        return [_run_of(Path(f"forecaster {place}"), about, thing)]
    raise InputError(
        f"cannot draw a figure of an object of type {type(thing).__name__}; give a run, its "
        "folder or a fitted forecaster"
    )


def part(*, cells: str | None = None, start: str | None = None, end: str | None = None) -> None:
    """Take the options of a part of the test part, which a figure of the whole refuses.

    Args:
        cells: ids of the cells to draw, separated by commas; by default all.
        start: first local time of a target, such as 2013-12-24 or "2013-12-24 06:00".
        end: end of the times of targets (exclusive).
    """


def common(*, highlight: str | None = None) -> None:
    """Take the option that all figures have.

    Args:
        highlight: names of methods to draw in colour, separated by commas; all others are grey.
    """


def figure(draw: Callable[..., Figure], *, has_parts: bool = True) -> Callable[..., Figure]:
    """Make a function of runs a figure with the common options, known by its name."""
    own = inspect.signature(draw)
    draws_parts = "cells" in own.parameters

    @listed
    @functools.wraps(draw)
    def drawn(
        runs: Any, *, ax: Axes | None = None, highlight: Any = None, **options: Any
    ) -> Figure:
        found = as_runs(runs)
        if "metric" in own.parameters:
            found = on_one_scale(found, options.get("metric", own.parameters["metric"].default))
        among = (*drawing.current().among, *labels_of(found))
        if not draws_parts:
            shown = {name: options.pop(name, None) for name in inspect.signature(part).parameters}
            if not has_parts and any(value is not None for value in shown.values()):
                raise InputError(
                    f"{draw.__name__} shows the training of models, not errors of chosen cells and "
                    "times; leave out these options"
                )
            found = parts_of(found, **shown)
        with drawing.looking(drawing.Look(ax, _names(highlight, found), among)):
            fig = draw(found, **options)
        if not isinstance(fig, drawing.PlainFigure):
            drawing.write_plainly(fig)
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


figure_of_training = functools.partial(figure, has_parts=False)
"""The same for a figure of training, which has no parts to draw."""


def _names(highlight: Any, runs: Sequence[ForecastRun]) -> tuple[str, ...]:
    """Return the names to highlight; names of the runs may contain commas."""
    if not isinstance(highlight, str):
        return tuple(highlight or ())
    known = {name for group in group_runs(runs) for name in (group.name, group.base)}
    found = []
    for name in sorted(known, key=len, reverse=True):
        if "," in name and name in highlight:
            found.append(name)
            highlight = highlight.replace(name, "")
    return (*found, *filter(None, map(str.strip, highlight.split(","))))


def _documented(doc: str, extra: Sequence[Callable[..., None]]) -> str:
    """Return a docstring with the common options among its arguments."""
    doc = inspect.cleandoc(doc)
    bodies = (inspect.cleandoc(f.__doc__ or "").partition("Args:\n")[2].rstrip() for f in extra)
    body = "\n".join(bodies)
    before, args, rest = doc.partition("\nArgs:\n")
    own, end, after = rest.partition("\n\n")
    ax = "axes to draw on, from Python; several panels share their place. By default a new figure."
    return f"{before}{args}{own}\n{body}\n    ax: {ax}{end}{after}" if args else doc

"""Figures of a benchmark: specifications, and drawing from its runs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from pydantic import StrictInt, TypeAdapter, ValidationError

from data_prep.base.errors import InputError, choose, slug
from data_prep.base.progress import noting
from stforecast.bench.curves import labels_of
from stforecast.bench.drawing import Look, looking, save_figure
from stforecast.bench.run_groups import R, grouped
from stforecast.federated.runs.run_folder import Run

log = logging.getLogger(__name__)

Plots = Mapping[str, Callable[..., Figure]]
"""Plot functions by name; their keyword-only parameters are a figure's options."""


@dataclass(frozen=True)
class FigureSpec:
    """Specification of a figure, drawn for each data set and scenario.

    Attributes:
        plot: name of a plot.
        name: name of the file.
        methods: labels of the rows to draw; all if empty.
        seeds: seeds of the runs to draw; all if empty.
        options: options of the plot.
    """

    plot: str
    name: str
    methods: tuple[str, ...] = ()
    seeds: tuple[StrictInt, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def chosen(self, runs: Iterable[R]) -> list[R]:
        """Return the runs to draw, in the order of `methods`."""
        runs = [r for r in runs if not self.seeds or r.seed in self.seeds]
        if not self.methods:
            return runs
        return [run for label in self.methods for run in runs if run.label == label]


def parse_figures(
    entries: Sequence[str | dict[str, Any]], labels: Iterable[str], plots: Plots
) -> tuple[FigureSpec, ...]:
    """Parse the key `figures`: names, or `{ plot, name, methods, seeds, options… }`."""
    labels = set(labels)
    specs = tuple(_spec(entry, labels, plots) for entry in entries)
    names = [slug(spec.name) for spec in specs]
    if twice := next((spec.name for spec in specs if names.count(slug(spec.name)) > 1), None):
        raise InputError(f"several figures are called {twice!r}; give each its own `name`")
    return specs


def _spec(entry: str | dict[str, Any], labels: set[str], plots: Plots) -> FigureSpec:
    given = {"plot": entry} if isinstance(entry, str) else dict(entry)
    if "plot" not in given:
        raise InputError(f"an entry of figures has no plot: {entry}")
    common = {key: given.pop(key) for key in ("plot", "name", "methods", "seeds") if key in given}
    try:
        spec = TypeAdapter(FigureSpec).validate_python(
            {"name": common["plot"], **common, "options": given}
        )
    except ValidationError as e:
        raise InputError(f"an entry of figures has a value of a wrong type: {entry}") from e
    if spec.plot not in plots:
        raise choose("plot", spec.plot, plots)
    parameters = inspect.signature(plots[spec.plot]).parameters.values()
    options = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - {"ax"}
    if unknown := given.keys() - options:
        raise choose(f"option of {spec.plot}", min(unknown), options)
    if absent := set(spec.methods) - labels:
        raise InputError(f"figure {spec.name}: {choose('label', min(absent), labels)}")
    return spec


@dataclass(frozen=True)
class Gallery:
    """Files of a benchmark's figures, and the one-line error of each failed one, by name."""

    drawn: Sequence[Path] = ()
    undrawn: Mapping[str, str] = field(default_factory=dict)

    def markdown(self, beside: Path) -> str:
        """Return the figures and the names of failed ones, for a file in the folder `beside`."""
        images = [f"![{p.stem}]({p.relative_to(beside).as_posix()})" for p in self.drawn]
        failed = [f"- {name}: {error}" for name, error in self.undrawn.items()]
        parts = ["Figures:", *images] if images else []
        return "\n\n".join(parts + (["Not drawn:", "\n".join(failed)] if failed else []))


def dates_tested(runs: Iterable[Run]) -> str:
    """Return the dates of the runs' test parts, for a figure; empty if they have none."""
    spans = {run.test_span for run in runs} - {None}
    if not spans:
        return ""
    first, last = min(span[0] for span in spans if span), max(span[1] for span in spans if span)
    several = f", {len(spans)} spans" if len(spans) > 1 else ""
    return f"test part {first[:10]} to {last[:10]}{several}"


def draw_figures(
    specs: Sequence[FigureSpec], runs: Sequence[R], folder: Path, plots: Plots
) -> Gallery:
    """Draw `DATA-SCENARIO-NAME.png` for each figure."""
    groups = grouped(runs, lambda run: "-".join(map(slug, filter(None, run.facts().values()))))
    wanted = {
        folder / f"{key}-{slug(spec.name)}.png": (
            partial(plots[spec.plot], **spec.options),
            spec.chosen(members),
        )
        for key, members in groups.items()
        for spec in specs
    }
    return draw_all(wanted, runs)


def draw_all(
    wanted: Mapping[Path, tuple[Callable[[Sequence[R]], Figure], Sequence[R]]], among: Sequence[R]
) -> Gallery:
    """Draw runs into files, with one look of each label `among` all runs.

    A figure that fails does not stop the others.
    """
    drawn, undrawn = [], {}
    for path, (draw, runs) in noting(list(wanted.items()), "drawing figures"):
        try:
            with looking(Look(among=labels_of(among))):
                figure = draw(runs)
            drawn.append(save_figure(figure, path, dates_tested(runs)))
        except Exception as e:
            undrawn[path.stem] = e.typed if isinstance(e, InputError) else repr(e)
            log.warning("figure %s: %s", path.stem, undrawn[path.stem])
            path.unlink(missing_ok=True)
    return Gallery(drawn, undrawn)

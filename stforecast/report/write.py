"""One HTML file on finished runs, which opens without a network."""

from __future__ import annotations

import datetime
import inspect
import logging
import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import matplotlib as mpl
import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.files import atomic_path
from data_prep.base.progress import noting
from stforecast.bench.curves import labels_of
from stforecast.bench.drawing import Look, looking
from stforecast.comparison.leaderboard import compare, overall
from stforecast.comparison.table import overall_rows
from stforecast.forecasting.results import ForecastRun
from stforecast.plots.cell_map import find_places
from stforecast.plots.excerpt import on_one_scale
from stforecast.report.section import Section
from stforecast.report.sections import SECTIONS, needs
from stforecast.report.sections.tested import cube_of
from stforecast.report.tables import Arrays, Table, as_json, packed

if TYPE_CHECKING:  # They import torch.
    from stforecast.data.series import Series
    from stforecast.forecasting.model import FittedModel
    from stforecast.forecasting.outlook import Outlook

log = logging.getLogger(__name__)

MOST_VALUES = 2_500_000
"""Values of series in a page, which keep it below 10 MB."""

PAGE = resources.files("stforecast.report") / "page"


class ReportPage:
    """A page of sections, see `stforecast.report.sections`.

    Attributes:
        sections: the sections, in order.
        arrays: values of the sections' series and maps.
        overall: table over all tasks, if there are several.
    """

    def __init__(self) -> None:
        self.sections: list[Section] = []
        self.arrays = Arrays()
        self.overall: Table | None = None

    def add(self, **known: Any) -> None:
        """Add each section whose needs are known, see `stforecast.report.sections.NEEDS`.

        Raises:
            InputError: if a section returns something else than a `Section` or None.
        """
        known = {name: value for name, value in known.items() if value is not None}
        known = {"arrays": self.arrays, "room": MOST_VALUES, **known}
        for title, section in SECTIONS.items():
            if known.keys() >= {*needs(section)}:
                names = inspect.signature(section).parameters.keys() & known.keys()
                found = section(**{name: known[name] for name in names})
                if not isinstance(found, Section | None):
                    kind = type(found).__name__
                    raise InputError(f"section {title} returned {kind}, expected Section or None")
                self.sections += [found] if found is not None else []

    def add_forecasts(
        self, runs: Sequence[ForecastRun], metric: str = "mase", reference: str | None = None
    ) -> None:
        """Add the sections of the tested runs of each data set.

        Args:
            runs: finished forecasts of one or several data sets.
            metric: error to compare, as in `metrics.csv`.
            reference: label of the runs that the others are compared with, see `compare`.

        Raises:
            InputError: if runs of one task were tested on different targets, or the metric or
                reference is unknown.
        """
        runs = on_one_scale(runs, metric)
        boards = compare(runs, metric, reference)
        room = MOST_VALUES // len(boards)
        with looking(Look(among=labels_of(runs))):
            for board in noting(boards, "filling the page"):
                self.add(board=board, room=room)
        if len(boards) > 1 and (judged := overall(boards)):
            title = f"All {len(boards)} tasks together"
            self.overall = Table(title, overall_rows(judged, metric))

    def add_outlook(
        self, run: ForecastRun, series: Series, found: Outlook, model: FittedModel | None = None
    ) -> None:
        """Add the sections of the forecast that follows the history of a run's model."""
        with run.open_forecasts() as located:
            places = find_places(located, cube_of(run))
        self.add(series=series, outlook=found, places=places, model=model)

    def write(self, out: str | os.PathLike[str], title: str, command: str = "") -> Path:
        """Write the page, with the `command` that writes it again; return `out`."""
        tasks = [one.charts for one in self.sections if one.charts]
        scales = {  # For all kinds of colour vision.
            name: [mpl.colors.to_hex(mpl.colormaps[source](x)) for x in np.linspace(0, 1, 17)]
            for name, source in (("sequential", "viridis"), ("diverging", "PuOr_r"))
        }
        scripts = ("data.js", "look.js", "map.js", "charts.js", "tables.js", "page.js")
        text = render(
            "page.html",
            title=title,
            written=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
            command=command,
            sections=self.sections,
            ahead=any("ahead" in of for of in tasks),
            overall=self.overall,
            script="\n".join((PAGE / name).read_text(encoding="utf-8") for name in scripts),
            numbers=packed(as_json({"tasks": tasks, "scales": scales})),
            arrays=packed(self.arrays.bytes()),
            plotly=_library() if tasks else "",
        )
        return write_html(Path(out), text)


def render(template: str, **values: Any) -> str:
    """Render a template of the folder `page`, with the style and the version of the package."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (PAGE / name).read_text(encoding="utf-8")),
        undefined=jinja2.StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(template).render(
        **values,
        version=version("stforecast"),
        style=(PAGE / "page.css").read_text(encoding="utf-8"),
    )


def write_html(out: Path, text: str) -> Path:
    """Write a page, and its folder if it is not there; return the path."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(out) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
    return out


def try_report(write: Callable[[], Path], out: Path) -> Path | None:
    """Write a page at the end of a benchmark; a failure is logged, as the results are there."""
    try:
        return write()
    except Exception as e:  # whatever it is, the benchmark is done
        reason = e if isinstance(e, InputError) else repr(e)
        log.warning("%s: not written: %s", out, reason)
        return None


@cache
def _library() -> str:
    """Return plotly.js, packed; it takes a while."""
    return packed((resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes())

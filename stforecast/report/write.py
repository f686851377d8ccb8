"""One HTML file on finished runs, which opens without a network."""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path

import jinja2
import matplotlib as mpl
import numpy as np

from data_prep.base.errors import InputError
from data_prep.base.files import atomic_path
from stforecast.bench.curves import labels_of
from stforecast.bench.drawing import Look, looking
from stforecast.comparison.leaderboard import Overall, Task, compare, overall
from stforecast.comparison.table import overall_rows
from stforecast.forecasting.results import ForecastRun
from stforecast.report.section import PlainSection, Section, section
from stforecast.report.tables import Arrays, Table, as_json, packed

log = logging.getLogger(__name__)

MOST_VALUES = 2_500_000
"""Values of series in a page, which keep it below 10 MB."""

SCRIPTS = ("data.js", "look.js", "map.js", "charts.js", "tables.js", "page.js")

SCALES = {"sequential": "viridis", "diverging": "PuOr_r"}
"""Colour maps of the map, for all kinds of colour vision."""

N_COLORS = 17


def write_report(
    runs: Sequence[ForecastRun],
    out: str | os.PathLike[str],
    *,
    metric: str = "mase",
    reference: str | None = None,
    title: str = "Forecasts compared",
    command: str = "",
    more: Sequence[PlainSection] = (),
) -> Path:
    """Write a page on finished runs: leaderboard, map, series, curves, data sheet, settings.

    Args:
        runs: finished forecasts of one or several data sets; may be empty if there is `more`.
        out: the HTML file.
        metric: error to compare, as in `metrics.csv`.
        reference: label of the runs that the others are compared with, see `compare`.
        title: heading of the page.
        command: command that writes the page again.
        more: sections on other runs, such as those of images, at the end.

    Returns:
        `out`.

    Raises:
        InputError: if runs of one task were tested on different targets, or the metric or
            reference is unknown.
    """
    out = Path(out)
    page = render(runs, metric, reference, title, command, more)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(out) as part:
        part.write_text(page, encoding="utf-8", errors="backslashreplace")
    return out


def try_report(write: Callable[[], Path], out: Path) -> Path | None:
    """Write a page at the end of a benchmark; a failure is logged, as the results are there.

    Args:
        write: writes the page.
        out: its file, for the message.
    """
    try:
        return write()
    except Exception as e:  # whatever it is, the benchmark is done
        reason = e if isinstance(e, InputError) else repr(e)
        log.warning("%s: not written: %s", out, reason)
        return None


def render(
    runs: Sequence[ForecastRun],
    metric: str,
    reference: str | None,
    title: str,
    command: str,
    more: Sequence[PlainSection],
) -> str:
    """Return the page as HTML; arguments as for `write_report`."""
    tasks = compare(runs, metric, reference) if runs or not more else []
    arrays = Arrays()
    room = MOST_VALUES // max(1, len(tasks))
    with looking(Look(among=labels_of(runs))):
        sections: list[Section | PlainSection] = [section(task, arrays, room) for task in tasks]
    sections += more
    judged = overall(tasks) if len(tasks) > 1 else []
    folder = resources.files("stforecast.report") / "page"
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string((folder / "page.html").read_text(encoding="utf-8"))
    return template.render(
        title=title,
        written=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        version=version("stforecast"),
        command=command,
        sections=sections,
        overall=_overall(judged, tasks),
        style=(folder / "page.css").read_text(encoding="utf-8"),
        script="\n".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS),
        numbers=packed(as_json({"tasks": [s.charts for s in sections], "scales": _scales()})),
        arrays=packed(arrays.bytes()),
        plotly=_library(),
    )


@cache
def _library() -> str:
    """Return plotly.js, packed; it takes a while."""
    file = resources.files("plotly") / "package_data" / "plotly.min.js"
    return packed(file.read_bytes())


def _overall(judged: Sequence[Overall], tasks: Sequence[Task]) -> Table | None:
    """Return the table over all tasks, if some methods have runs in each."""
    if not judged:
        return None
    rows = overall_rows(judged, tasks[0].board.metric)
    return Table(f"All {len(tasks)} tasks together", rows)


def _scales() -> dict[str, list[str]]:
    """Return the colours of the map, from low to high."""
    return {
        name: [mpl.colors.to_hex(mpl.colormaps[source](x)) for x in np.linspace(0, 1, N_COLORS)]
        for name, source in SCALES.items()
    }

"""The command info, which describes any cube, table, raw records, run, model or federation."""

from __future__ import annotations

import glob
import pkgutil
import shlex
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from data_prep.base.errors import InputError, Words, close_to
from data_prep.described import Description, cube_facts, profile_facts
from stforecast.cli.commands import command, say_json
from stforecast.cli.options import JSON

if TYPE_CHECKING:
    import xarray as xr

DESCRIBERS = (
    "stforecast.flower.described:of_node",
    "stforecast.bench.described:of_run",
    "stforecast.forecasting.described:of_model",
    "stforecast.bench.described:of_unfinished",
    "data_prep.described:of_days",
    "stforecast.bench.described:of_runs",
    "stforecast.flower.described:of_federation",
    "data_prep.described:of_cube",
    "data_prep.described:of_arrays",
    "data_prep.described:of_table",
)
"""Functions that describe a path, or return None if it is of another kind."""


@command(JSON)
def info(path: Path, *, as_json: bool, page: Path | None = None) -> None:
    """Describe a cube, a table, raw records, a run or a model in one screen.

    PATH is a file or a folder: a cube (.nc), a table of your own (.csv, .xlsx, .parquet, or several
    in a folder, a .zip or by a pattern), with a profile of gaps, outliers and rhythm; raw days,
    records in HDF5 (.h5), a run, a folder of runs, a model, such as one that adapt wrote,
    or the results of a federation. Nothing is written but a page, if asked for.

    Args:
        path: File or folder.
        as_json: See `JSON`.
        page: Page to write, an .html file with pictures of a cube or a table.
    """
    found = describe(path) if page is None else describe_on_page(path, page)
    if as_json:
        say_json(found.in_full(path))
        return
    click.echo(f"{path}: {found.kind}\n{found.text}")
    if found.next_command:
        click.echo(f"\nnext: {found.next_command}")
    if page is not None:
        click.echo(f"{page}: open it in a browser")


def describe(path: Path) -> Description:
    """Describe whatever is at a path."""
    if not (path.exists() or glob.has_magic(str(path))):
        advice = f"the folder {path.parent} does not exist either; correct the path"
        if path.parent.is_dir():
            names = sorted(p.name for p in path.parent.iterdir())[:1000]
            advice = f"correct the path{close_to(path.name, names)}"
        raise InputError(f"{path}: no such file or folder; {advice}")
    for place in DESCRIBERS if path.is_dir() else DESCRIBERS[-3:]:  # A file is no folder of runs.
        if found := pkgutil.resolve_name(place)(path):
            return checked(path, found)
    if path.is_dir():
        raise InputError(
            f"{path}: a folder without runs, models or raw records; give a file in it, or another "
            "folder"
        )
    from data_prep.readers.formats import suffixes

    raise InputError(
        f"{path}: unknown kind of file; give a cube (.nc), a table ({', '.join(suffixes())}), a "
        "folder of raw days or a run"
    )


def checked(path: Path, found: Description) -> Description:
    """Return a description whose next command has a horizon that the data are long enough for."""
    words = shlex.split(found.next_command)
    if words[1:2] != ["forecast"]:
        return found
    from data_prep.cube import open_cube, services_of, step_of

    service = words[words.index("--service") + 1] if "--service" in words else None
    at = words.index("--horizon") + 1
    with open_cube(path) if found.cube is None else nullcontext(found.cube) as ds:
        n_steps = ds.sizes["time"]
        if n_steps < 2:
            return found._replace(next_command="")
        from stforecast.data.clock import Calendar
        from stforecast.data.dates import DAY
        from stforecast.data.window_spec import WindowSpec
        from stforecast.forecasting.quick import choose_share

        least = _first_known(ds, service or services_of(ds)[0])
        calendar, step = Calendar.from_cube(ds), step_of(ds)
        usual = (int(words[at]), 12, 6, 3, 1)
        for horizon in [h for h in usual if h >= least] or [round(DAY / step)]:
            with suppress(InputError):
                # The default method's windows; its module would import torch.
                window = WindowSpec(1, 0, extra_lags="auto", profile="auto", horizon=horizon)
                choose_share(calendar, n_steps, window.at(step))
                words[at] = str(horizon)
                return found._replace(next_command=shlex.join(words))
    if found.cube is None:
        return found._replace(next_command="")
    from data_prep.readers.formats import without_suffix

    options = words[words.index(str(path)) + 1 : at - 1]
    options = options if service is None else options[2:]
    ends = ["--out", f"{without_suffix(path.name)}.nc"]
    words = ["stforecast", "prepare", "table", "--raw", str(path), *options, *ends]
    return found._replace(next_command=shlex.join(words))


def _first_known(ds: xr.Dataset, service: str) -> int:
    """Return how many steps ahead the first time of day is at which a service has any value."""
    import pandas as pd

    from data_prep.cube import local_time, observed, step_of
    from stforecast.data.dates import DAY, divides_a_day

    times, step = local_time(ds), step_of(ds)
    if not divides_a_day(step) or times[-1] - times[0] < DAY:
        return 1
    known = times[observed(ds, service).notnull().any("cell").to_numpy()]
    ahead = pd.date_range(times[-1] + step, periods=DAY // step, freq=step)
    return 1 + int(pd.Index(ahead.time).isin(known.time).argmax())


def describe_on_page(path: Path, page: Path) -> Description:
    """Describe a cube or a table, and write its page."""
    from data_prep.cube import open_cube
    from stforecast.report.profile import write_profile

    found = describe(path)
    ds = open_cube(path) if found.kind == "cube" else found.cube
    if ds is None:
        remedy = Words("give a cube or a table that is clear, or leave out {page}")
        raise InputError(f"{path}: {found.kind}, which has no page; ", remedy)
    with ds:
        facts = {n: profile_facts(p) for n, p in found.about["profile"].items()}
        head = cube_facts(found.about)
        write_profile(page, f"{path.name}: {found.kind}", ds, head, facts, found.next_command)
    return found

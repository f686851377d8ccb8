"""The command info, which describes any cube, table, raw records, run, model or federation."""

from __future__ import annotations

import datetime
import glob
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from data_prep.base.errors import InputError, Words, counted, some
from stforecast.cli import info_data
from stforecast.cli.commands import command, say_json
from stforecast.cli.options import JSON

if TYPE_CHECKING:
    import xarray as xr

    from data_prep.readers.origin import Note

ARRAYS = (".h5", ".hdf5")

MOST_COLUMNS = 12
"""Columns of an unclear table that are shown."""


class Description(NamedTuple):
    """What was found at a path, for JSON and for readers, the command to type next, and a table."""

    kind: str
    about: dict[str, Any]
    text: str
    next_command: str = ""
    cube: xr.Dataset | None = None

    def in_full(self, path: Path) -> dict[str, Any]:
        """Return the description of what lies at a path, for JSON."""
        return {"path": str(path), "kind": self.kind, **self.about}


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
    if path.is_dir():
        return _folder(path)
    if not (path.is_file() or glob.has_magic(str(path))):
        raise InputError(f"{path}: no such file or folder; {_beside(path)}")
    if path.is_file() and path.suffix.lower() == ".nc":
        return _cube(path)
    from data_prep.readers.formats import names_table, suffixes
    from data_prep.readers.open import is_pattern

    if path.suffix.lower() in ARRAYS:
        return _arrays(path)
    if is_pattern(path) or names_table(path.name):
        return _table(path)
    raise InputError(
        f"{path}: unknown kind of file; give a cube (.nc), a table ({', '.join(suffixes())}), a "
        "folder of raw days or a run"
    )


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
        facts = {n: info_data.profile_facts(p) for n, p in found.about["profile"].items()}
        head = info_data.cube_facts(found.about)
        write_profile(page, f"{path.name}: {found.kind}", ds, head, facts, found.next_command)
    return found


def _beside(path: Path) -> str:
    """Return advice for a path that does not exist: a name like it in the same folder."""
    from data_prep.base.errors import close_to

    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist either; correct the path"
    names = sorted(p.name for p in path.parent.iterdir())[:1000]
    return f"correct the path{close_to(path.name, names)}"


def _cube(path: Path) -> Description:
    from data_prep.cube import open_cube
    from data_prep.description import describe_cube

    with open_cube(path) as ds:
        about = describe_cube(ds)
        profiles = _profiles(ds, about)
    text = f"{info_data.cube_text(about)}\n\n{info_data.profile_text(profiles)}"
    return Description("cube", about | {"profile": profiles}, text, _forecast(path, about))


def _profiles(ds: xr.Dataset, about: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the profiles of the services that are not blank."""
    from data_prep.description import profile

    return {name: profile(ds, name) for name, s in about["services"].items() if not s["blank"]}


def _forecast(path: Path, about: dict[str, Any], options: Sequence[str] = ()) -> str:
    services = [name for name, s in about["services"].items() if not s["blank"]]
    choice = ["--service", services[0]] if len(about["services"]) > 1 and services else []
    words = ["stforecast", "forecast", str(path), *choice, *options]
    return join([*words, "--horizon", "24", "--out", "forecast/"])


def _table(path: Path) -> Description:
    """Describe a table, also one whose gaps and repeated rows need an option."""
    from data_prep.description import describe_cube
    from data_prep.readers.origin import noting
    from data_prep.sets.table import read

    options: dict[str, Any] = {}
    problems: list[str] = []
    while True:
        try:
            with noting() as notes:
                ds = read(path, **options)
            break
        except InputError as e:
            if e.names("allow_gaps") and not options.get("allow_gaps"):
                options["allow_gaps"] = True
            elif e.names("duplicates") and not (e.names("clock") or "duplicates" in options):
                options["duplicates"] = "mean"
            else:
                return _unclear(path, e, notes)
            problems.append(e.typed)
    about = describe_cube(ds)
    profiles = _profiles(ds, about)
    steps = f"how it is read\n{info_data.steps_text(notes)}"
    parts = [info_data.cube_text(about), steps, *problems, info_data.profile_text(profiles)]
    words = ["--allow-gaps"] if "allow_gaps" in options else []
    words += ["--duplicates", "mean"] if "duplicates" in options else []
    if profiles:
        empty = ds[next(iter(profiles))].isnull().all("time").to_numpy()
        cells = ",".join(map(str, ds["cell"].to_numpy()[empty]))
        words += ["--cells", f"not:{cells}"] if cells else []
    if next(iter(profiles.values()), {}).get("counters") and about["step_minutes"]:
        words += ["--resample", f"{about['step_minutes']:g}min", "--agg", "increase"]
    about |= {"profile": profiles, "problems": problems, **info_data.notes_of(notes)}
    text = "\n\n".join([*parts, info_data.preview(ds)])
    return Description("table", about, text, _forecast(path, about, words), ds)


def _unclear(path: Path, error: InputError, notes: Sequence[Note]) -> Description:
    """Describe a table that `prepare` refuses without options: its columns and the question."""
    from data_prep.readers.decode import read_table
    from data_prep.readers.options import TableOptions

    if not path.is_file() or path.suffix.lower() == ".zip":
        raise error
    df, _ = read_table(path, options=TableOptions(no_header=error.names("no_header")))
    question = error.typed
    columns = {str(name): str(column.iloc[0]) for name, column in df.items()} if len(df) else {}
    about = {"rows": len(df), "columns": columns, "problem": question}
    about |= info_data.notes_of(notes)
    text = info_data.facts(
        {"rows": f"{len(df):,}", "columns": f"{len(columns)}, with the first row:"}
    )
    lines = [f"    {name}: {value}" for name, value in columns.items()]
    if len(lines) > MOST_COLUMNS:
        lines[MOST_COLUMNS:] = [f"    …: {len(lines) - MOST_COLUMNS} more"]
    steps = ["how it is read", info_data.steps_text(notes), ""] if notes else []
    text = "\n".join([text, *lines, "", *steps, question])
    command = f"stforecast prepare table --raw {quote(str(path))} --dry-run"
    more = f"{command}, with the option named above"
    return Description("table, not clear without options", about, text, more)


def _arrays(path: Path) -> Description:
    from data_prep.readers.hdf5 import holds_frame

    about = info_data.describe_arrays(path)
    name = about["data_set"]
    if not name and holds_frame(path):
        return _table(path)
    command = f"stforecast prepare {name} --raw {quote(str(path))} --out {name}.nc" if name else ""
    kind = "raw records" if about["layout"] else "HDF5"
    return Description(kind, about, info_data.arrays_text(about), command)


def _folder(path: Path) -> Description:
    from data_prep.sets.dcrnn import MetrLA, PemsBay
    from stforecast.data.cubes import is_table
    from stforecast.federated.runs.run_folder import ABOUT, BEGUN, CHECKPOINTS
    from stforecast.flower.standing import EVENTS
    from stforecast.forecasting.results import is_model

    if (path / CHECKPOINTS).is_dir() and not ((path / BEGUN).exists() or (path / EVENTS).exists()):
        return _node(path)
    if (path / ABOUT).exists():
        about = describe_run(path)
        command = f"stforecast compare {quote(str(path))}"
        return Description("finished run", about, run_text(about), command)
    if is_model(path):
        about = describe_model(path)
        more = " --events EVENTS.csv" if about["events"] else ""
        command = (
            f"stforecast predict {quote(str(path))} --history NEWER.nc{more} --out forecast.csv"
        )
        return Description("model", about, model_text(about), command)
    if (path / BEGUN).exists():
        about = describe_unfinished(path)
        command = f"{about['command']} --resume {quote(str(path))}"
        return Description("unfinished run", about, unfinished_text(about), command)
    if found := info_data.raw_days(path):
        about = info_data.describe_days(path, *found)
        command = f"stforecast prepare {found[0]} --raw {quote(str(path))} --out {found[0]}.nc"
        return Description("raw records", about, info_data.days_text(about), command)
    if folders := sorted(p.parent for p in path.rglob(ABOUT)):
        rows, damaged = describe_runs(folders, path)
        about = {"runs": rows} | ({"damaged": damaged} if damaged else {})
        command = "" if damaged else f"stforecast compare {quote(str(path))}"
        return Description("finished runs", about, runs_text(rows, damaged), command)
    if (path / EVENTS).exists():
        return _federation(path)
    for name in (*MetrLA.records, *PemsBay.records):
        if (path / name).is_file():
            return _arrays(path / name)
    if is_table(path):
        return _table(path)
    raise InputError(
        f"{path}: a folder without runs, models or raw records; give a file in it, or another "
        "folder"
    )


def _federation(path: Path) -> Description:
    from stforecast.flower.standing import Standing, read_event_log, read_results, status_text

    results = read_results(path)
    standing = Standing.of(read_event_log(path))
    about = {**asdict(standing), "results": results}
    command = f"stforecast federate status {quote(str(path))}"
    return Description("federation", about, status_text(standing), command)


def _node(path: Path) -> Description:
    """Describe a federation's run on one of its nodes, which may leave a model and errors."""
    from stforecast.forecasting.results import is_model

    kind = "a federation's run on a node"
    if is_model(path / "model"):
        about = describe_model(path / "model")
        command = f"stforecast federate check {quote(str(path))} --data NEWER.nc --days 2"
        return Description(kind, about, model_text(about), command)
    files = sorted(p.name for p in path.iterdir())
    text = info_data.facts({"holds": ", ".join(files), "model": "none that forecasts"})
    return Description(kind, {"files": files}, text)


def describe_run(folder: Path) -> dict[str, Any]:
    """Describe a finished run; `of` is its kind, which adds facts of its own.

    Those of images are `data` and `accuracies`; of forecasts `data`, `service`, `units`, `cells`,
    `step_minutes`, `time_zone`, `horizon`, `split`, `parts` and `errors` on the test part.
    """
    from stforecast.bench.kind import kind_of
    from stforecast.federated.runs.run_folder import read_about

    about = read_about(folder, "stforecast run")
    settings, kind = about["settings"], kind_of(about)
    return {
        "label": about.get("label", settings["method"]),
        "method": settings["method"],
        "seed": settings.get("seed"),
        "seconds": about.get("seconds"),
        "versions": about.get("versions", {}),
        "of": kind.name,
        **kind.describe(kind.run_type.open(folder)),
    }


def run_text(about: Mapping[str, Any]) -> str:
    """Return the description of a run as text."""
    from stforecast.bench.kind import kind_of

    label = "" if about["label"] == about["method"] else f"{about['label']}: "
    took = "" if about["seconds"] is None else f", {about['seconds']:.1f} s"
    own = kind_of({"task": about["of"]}).facts(about)
    lines = {
        "method": f"{label}{about['method']}, seed {about['seed']}{took}",
        "data": own.pop("data"),
        "versions": ", ".join(f"{name} {v}" for name, v in about["versions"].items()),
    }
    return info_data.facts({**lines, **own})


def describe_runs(
    folders: Sequence[Path], root: Path
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Describe the runs of a folder, such as a benchmark.

    Returns:
        A row for each run, and the error of each that cannot be read by its folder.
    """
    rows: list[dict[str, Any]] = []
    damaged = {}
    for folder in folders:
        try:
            about = describe_run(folder)
        except InputError as e:
            damaged[str(folder.relative_to(root))] = e.typed
            continue
        rows.append(
            {
                "run": str(folder.relative_to(root)),
                "method": about["method"],
                "data": Path(str(about["data"])).stem,
                "seed": about["seed"],
                **_score(about),
            }
        )
    return rows, damaged


def _score(about: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the error of a forecast, or the first accuracy of an image run."""
    if accuracies := about.get("accuracies"):
        return {"accuracy": accuracies[0]["accuracy"]}
    return {"mae": about.get("errors", {}).get("mae")}


def runs_text(rows: Sequence[Mapping[str, Any]], damaged: Mapping[str, str]) -> str:
    """Return the runs of a folder as a table, and the errors of damaged ones."""
    from tabulate import tabulate

    numbers = ("mae", "accuracy")
    shown = [
        {
            name: f"{value:.4f}" if name in numbers and value is not None else value
            for name, value in row.items()
        }
        for row in rows
    ]
    table = tabulate(shown, headers="keys", disable_numparse=True, missingval="-")
    problems = "\n".join(f"  damaged: {problem}" for problem in damaged.values())
    return "\n\n".join(filter(None, [table, problems]))


def describe_unfinished(folder: Path) -> dict[str, Any]:
    """Describe a run that was stopped: its method, data and newest checkpoint."""
    from stforecast.bench.kind import kind_of
    from stforecast.federated.runs.run_folder import BEGUN, CHECKPOINTS, read_begun

    about = read_begun(folder, "stforecast run", ())
    settings = about["settings"]
    numbers = (p.name.removeprefix("round-") for p in (folder / CHECKPOINTS).rglob("round-*"))
    rounds = [int(number) for number in numbers if number.isdigit()]
    return {
        "file": BEGUN,
        "command": kind_of(about).run_type.command,
        "method": settings["method"],
        "data": about.get("data", settings.get("data")),
        "rounds_done": max(rounds, default=0),
        "rounds": settings.get("rounds", 0) * settings.get("stages", 1),
    }


def unfinished_text(about: Mapping[str, Any]) -> str:
    """Return the description of an unfinished run as text."""
    done = f"{about['rounds_done']} of {about['rounds']} rounds saved"
    return info_data.facts({"method": about["method"], "data": str(about["data"]), "state": done})


def describe_model(folder: Path) -> dict[str, Any]:
    """Describe a saved forecaster without loading its arrays.

    `model` is None for a reference forecaster. `time_zone` is empty or "local" for times without
    one. Its windows read `inputs`, `static` and `events`.
    """
    import pandas as pd

    from stforecast.federated.runs.model_files import read_description, restoring
    from stforecast.forecasting.config import resolve
    from stforecast.forecasting.results import MODEL

    file = folder / MODEL
    about = read_description(file, "Forecaster.save")
    with restoring(folder):
        config = resolve(**about["settings"])
        saved = datetime.datetime.fromtimestamp(file.stat().st_mtime).astimezone()
        return {
            "method": config.method,
            "model": config.run.model if config.federated else None,
            "seed": config.run.seed,
            "service": about["service"],
            "units": about["units"],
            "step_minutes": pd.Timedelta(about["step"]) / pd.Timedelta(minutes=1),
            "time_zone": about["time_zone"],
            "horizon": config.window.horizon,
            "cells": len(about["cells"]),
            "first_cells": about["cells"][:5],
            "adapted": about["adapted"],
            "trained_on": about["trained_on"],
            "saved": saved.isoformat(timespec="seconds"),
            "inputs": list(config.window.services),
            "static": list(config.window.columns),
            "events": list(config.window.kinds),
        }


def model_text(about: Mapping[str, Any]) -> str:
    """Return the description of a saved forecaster as text."""
    units = "" if about["units"] == "1" else f" in {about['units']}"
    model = f" of {about['model']}" if about["model"] else ""
    trained = about["trained_on"]
    span = f", {trained['first'][:16]} to {trained['last'][:16]}" if "first" in trained else ""
    known, step = counted(about["cells"], "cell"), info_data.step_text(about["step_minutes"])
    return info_data.facts(
        {
            "method": f"{about['method']}{model}, seed {about['seed']}",
            "forecasts": f"{about['service']}{units}",
            "ahead": f"{counted(about['horizon'], 'step')} of {step}",
            "times": info_data.zone_text(about["time_zone"]),
            "cells": f"{known}: {some(about['first_cells'])}"
            + (", …" if about["cells"] > len(about["first_cells"]) else "")
            + ("; adapted to some that it was not trained on" if about["adapted"] else ""),
            "trained on": f"{trained['data']}{span}" if trained else "not noted",
            "reads": _reads(about),
            "saved": about["saved"],
        }
    )


def _reads(about: Mapping[str, Any]) -> str:
    """Say what besides the service itself a history must hold, or must come with it."""
    parts = {
        "the services": about["inputs"],
        "the columns": about["static"],
        "a table of events of the kinds": about["events"],
    }
    return "; ".join(f"{what} {', '.join(names)}" for what, names in parts.items() if names)

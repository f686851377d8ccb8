"""Descriptions of data for `stforecast info`: cubes, tables and raw records.

A function `of_…` returns the description of a path, or None if it is of another kind.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING, Any, NamedTuple

from data_prep.base.errors import InputError, counted, four_digits, in_minutes, some
from data_prep.readers.origin import STEPS, Note

if TYPE_CHECKING:
    import xarray as xr


class Description(NamedTuple):
    """What was found at a path, for JSON and for readers, the command to type next, and a table."""

    kind: str
    about: dict[str, Any]
    text: str
    next_command: str = ""
    cube: xr.Dataset | None = None

    def in_full(self, path: Path) -> dict[str, Any]:
        """Return the description of a path, for JSON."""
        return {"path": str(path), "kind": self.kind, **self.about}


def facts(labelled: Mapping[str, str]) -> str:
    """Return labelled facts, one on each line; empty ones are left out.

    >>> print(facts({"cells": "25", "roads": ""}))
      cells      25
    """
    return "\n".join(f"  {label:11}{text}" for label, text in labelled.items() if text)


def cube_text(about: Mapping[str, Any]) -> str:
    """Return the result of `data_prep.description.describe_cube` as text."""
    from tabulate import tabulate

    services, rows = about["services"], []
    for name, s in services.items():
        numbers = [_number(s[n]) for n in ("min", "mean", "max")]
        units = "none" if s["units"] == "1" else s["units"]
        rows.append([name, units, *numbers, f"{100 * s['missing']:.1f} %"])
    heads = ["service", "unit", "min", "mean", "max", "missing"]
    table = tabulate(rows, headers=heads, disable_numparse=True)
    return "\n\n".join(filter(None, [facts(cube_facts(about)), table, _notes(services)]))


def cube_facts(about: Mapping[str, Any]) -> dict[str, str]:
    """Return what a cube is, in words."""
    names = ", ".join(map(str, about["first_cells"]))
    names += ", …" if about["cells"] > len(about["first_cells"]) else ""
    known = " and ".join(what for what in ("places", "roads") if about[what])
    sums = about["checksums"]
    files = "".join(f"{name} {checksum[:23]}…" for name, checksum in [*sums.items()][:1])
    return {
        "title": about["title"],
        "period": period(about),
        "steps": f"{counted(about['steps'], 'step')} of {step_text(about['step_minutes'])}",
        "cells": f"{about['cells']}: {names}" + (f"; {known} known" if known else ""),
        "source": f"{about['source']}; licence: {about['license']}",
        "files": f"{len(sums)}, such as {files}" if len(sums) > 1 else files,
    }


def profile_text(profiles: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the results of `data_prep.description.profile` by service as text."""
    texts = {name: facts(profile_facts(found)) for name, found in profiles.items()}
    return "\n".join(f"{name}\n{text}" for name, text in texts.items() if text)


def profile_facts(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the findings of a profile in words, by subject; empty where there is nothing."""
    stuck, outliers, shifts = found["stuck"], found["outliers"], found["shifts"]
    cells, days = (
        ", ".join(f"{one} {_percent(share)}" for one, share in found[key].items())
        for key in ("missing_cells", "missing_days")
    )
    parts = {
        "missing": f"{_percent(found['missing'])}; most in cells {cells}; on days {days}"
        if found["missing"] else "",
        "zeros": f"{_percent(found['zeros'])} of the values" if found["zeros"] else "",
        "constant": f"{counted(len(found['constant']), 'cell')}: {some(found['constant'], 5)}"
        if found["constant"] else "",
        "counter": f"runs on in {counted(len(found['counters']), 'cell')}, such as "
        f"{found['counters'][0]}: --agg increase forecasts its increments"
        if found["counters"] else "",
        "stuck": f"{counted(stuck['spans'], 'span')} without a change, the longest "
        f"{counted(stuck['longest'], 'step')} of cell {stuck['cell']} from {stuck['first'][:16]}"
        if stuck["spans"] else "",
        "outliers": f"{outliers['count']:,}, the furthest {_number(outliers['value'])} of cell "
        f"{outliers['cell']} at {outliers['time'][:16]}" if outliers["count"] else "",
        "shifts": f"{shifts['count']:,} of level, the largest {_number(shifts['before'])} to "
        f"{_number(shifts['after'])} of cell {shifts['cell']} about {shifts['week']}"
        if shifts["count"] else "",
        "rhythm": ", ".join(
            f"{key} {_percent(found[key])}" for key in ("daily", "weekly") if found[key] is not None
        ),
    }  # fmt: skip
    if parts["rhythm"]:
        parts["rhythm"] += " of the variance explained by the mean of each time"
    return parts


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def steps_text(notes: Sequence[Note]) -> str:
    """Return the findings of each step of reading, one line each; `!` marks changes.

    >>> steps_text([Note("rows", 30, "a.csv", "left out 1 row: totals")])
    '  rows       ! left out 1 row: totals'
    """
    found: dict[str, dict[str, list[str]]] = {step: {} for step in STEPS}
    for note in sorted(notes, key=lambda note: note.level > logging.DEBUG):
        tables = found[note.step].setdefault("! " * note.is_warning + note.text, [])
        tables += [note.table] if note.table not in tables else []
    shown = []
    for step, texts in found.items():
        n_tables, lines = len({name for tables in texts.values() for name in tables}), []
        for text, tables in texts.items():
            others = f" and {len(tables) - 1} more" if len(tables) > 1 else ""
            lines.append(f"{tables[0]}{others}: {text}" if len(tables) < n_tables else text)
        if (more := len(lines) - 4) > 0:
            lines[4:] = [f"… ({more} more)"]
        shown += [facts({step if i == 0 else "": line}) for i, line in enumerate(lines)]
    return "\n".join(shown)


def notes_of(notes: Sequence[Note]) -> dict[str, Any]:
    """Return the findings of steps for JSON: `steps`, and their changes as `notes`."""
    changed = [f"{note.table}: {note.text}" for note in notes if note.is_warning]
    steps = [{"step": n.step, "table": n.table, "text": n.text} for n in notes]
    return {"steps": steps} | ({"notes": changed} if changed else {})


def preview(ds: xr.Dataset) -> str:
    """Return the first rows of each service, as they are understood."""
    from tabulate import tabulate

    from data_prep.cube import local_time, observed, services_of

    tables = []
    n_rows, n_cells = 5, 6
    cells = [str(cell) for cell in ds.indexes["cell"][:n_cells]]
    more = ds.sizes["cell"] - len(cells)
    heads = [*cells, *([f"… {more} more"] if more > 0 else [])]
    local = local_time(ds)[:n_rows]
    formats = [("min", "%H:%M"), ("s", "%H:%M:%S")]
    fitting = (of for unit, of in formats if (local == local.floor(unit)).all())
    times = local.strftime(f"%Y-%m-%d {next(fitting, '%H:%M:%S.%f')}")
    for name in services_of(ds):
        values = observed(ds, name)[:n_rows, :n_cells].to_numpy()
        rows = [
            [time, *(f"{v:g}" if v == v else "missing" for v in row), *([""] if more > 0 else [])]
            for time, row in zip(times, values, strict=True)
        ]
        units = ds[name].attrs.get("units", "1")
        title = name if units == "1" else f"{name}, {units}"
        tables.append(tabulate(rows, headers=[title, *heads], disable_numparse=True))
    return "\n\n".join(tables)


def step_text(minutes: float | None) -> str:
    """Return the length of a step in words.

    >>> step_text(10), step_text(60), step_text(1440), step_text(None)
    ('10 minutes', '1 hour', '1 day', 'unknown length')
    """
    if minutes is None:
        return "unknown length"
    if minutes % 60 == 0 and minutes % 1440:
        return counted(int(minutes // 60), "hour")
    return in_minutes(timedelta(minutes=minutes))


def zone_text(zone: str) -> str:
    """Say on which clock a model's data are.

    >>> zone_text("Europe/Rome"), zone_text("local")
    ('in Europe/Rome', 'without a zone')
    """
    return "without a zone" if zone in ("", "local") else f"in {zone}"


def period(about: Mapping[str, Any]) -> str:
    """Return the span of a cube in local time, with its zone; seconds only if there are any."""
    zone = about["time_zone"]
    clock = f"local time, {zone}" if about["clock"] == "local" or zone != "UTC" else "UTC"
    first, last = str(about["first"]), str(about["last"])
    end = 16 if first.endswith(":00") and last.endswith(":00") else None
    return f"{first[:end]} to {last[:end]} ({clock})"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return four_digits(value)


def _notes(services: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what is odd about services, one line for each."""
    blank = [name for name, s in services.items() if s["blank"] and s["max"] is not None]
    missing = [name for name, s in services.items() if s["max"] is None]
    lines = [f"  blank, nothing but 0 was recorded: {some(blank, 12)}"] if blank else []
    lines += [f"  without any value: {some(missing, 12)}"] if missing else []
    for name, s in services.items():
        empty = [
            f"{counted(s[key], what)} without any value"
            for key, what in (("empty_steps", "step"), ("empty_cells", "cell"))
            if s[key] and not s["blank"]
        ]
        if told := [*empty, *(["0 means missing"] if s["zero_is_missing"] else [])]:
            lines.append(f"  {name}: {', '.join(told)}")
    return "\n".join(lines)


SENSORS = {"207": "metr-la", "325": "pems-bay", "8600": "largest"}
"""Data sets that are published as a table of pandas, by the number of its columns."""


def of_days(folder: Path) -> Description | None:
    """Describe a folder of raw days by its names; the records are not read."""
    from data_prep.city.simulate import read_marker

    days = {
        name: sorted(p for p in folder.glob(f"sms-call-internet-{place}-*") if p.is_file())
        for name, place in {"milan": "mi", "trentino": "tn"}.items()
    }
    name = next((name for name, files in days.items() if files), "")
    if not (files := days.get(name, [])):
        return None
    found = [re.search(r"(\d{4}-\d{2}-\d{2})\.", p.name) for p in files]
    dates = sorted({date.fromisoformat(match[1]) for match in found if match})
    span = (dates[-1] - dates[0]).days + 1 if dates else 0
    whole = {dates[0] + timedelta(days=i) for i in range(span)}
    simulation = read_marker(folder)
    about: dict[str, Any] = {
        "data_set": name,
        "files": len(files),
        "bytes": sum(p.stat().st_size for p in files),
        "first": str(dates[0]) if dates else None,
        "last": str(dates[-1]) if dates else None,
        "missing": [str(day) for day in sorted(whole - set(dates))],
        "simulated": simulation.source if simulation else None,
    }
    lines = {
        "records": f"raw days of {name}, Telecom Italia's layout",
        "files": f"{about['files']}, {about['bytes'] / 1e6:,.1f} MB",
        "days": f"{about['first']} to {about['last']}",
        "missing": some(about["missing"], 5),
        "note": about["simulated"] or "",
    }
    return Description("raw records", about, facts(lines), _prepare(name, folder))


def of_arrays(path: Path) -> Description | None:
    """Describe the arrays of an HDF5 file, and the data set that is published so.

    Of a table of pandas that is the data set with as many columns, if any. The path may be the
    folder of the file of a data set.
    """
    import h5py

    from data_prep.readers.hdf5 import holds_frame, open_hdf5

    if path.is_dir():
        from data_prep.sets.dcrnn import MetrLA, PemsBay

        inside = (path / name for name in (*MetrLA.records, *PemsBay.records))
        file = next(filter(Path.is_file, inside), None)
        return of_arrays(file) if file else None
    if path.suffix.lower() not in (".h5", ".hdf5"):
        return None

    arrays: dict[str, str] = {}
    with open_hdf5(path, "as HDF5", "give a cube, or records in the layout of a data set") as file:

        def add(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset):
                shape = " × ".join(map(str, item.shape)) or "single value"
                arrays[name] = f"{shape} {item.dtype}"

        file.visititems(add)
    size = path.stat().st_size
    layout, data_set, guess, words = None, None, "", "no known layout"
    table = next((text for name, text in arrays.items() if name.endswith("block0_values")), None)
    if {"idx", "cell"} <= set(arrays):
        layout, data_set, words = "fedda", "fedda-h5", "layout of FedDA's files"
    elif table is not None:
        layout, words = "pandas", "a table that pandas saved, a column for each sensor"
        columns = re.search(r"× (\d+) ", table)
        data_set = SENSORS.get(columns[1] if columns else "")
        guess = f"{data_set}, by the number of columns; another set may have as many"
        if data_set is None:
            names = ", ".join(SENSORS.values())
            guess = f"not known; {names} are published so: stforecast prepare NAME"
    about = {"layout": layout, "data_set": data_set, "bytes": size, "arrays": arrays}
    lines = {"records": f"HDF5, {words}", "data set": guess, "size": f"{size / 1e6:,.1f} MB"}
    text = "\n".join([facts(lines), *(f"    {n}: {s}" for n, s in arrays.items())])
    if not data_set and holds_frame(path):
        return _table(path)
    command = _prepare(data_set, path) if data_set else ""
    return Description("raw records" if layout else "HDF5", about, text, command)


def of_cube(path: Path) -> Description | None:
    """Describe a cube."""
    if not path.is_file() or path.suffix.lower() != ".nc":
        return None
    from data_prep.cube import open_cube
    from data_prep.description import describe_cube

    with open_cube(path) as ds:
        about = describe_cube(ds)
        profiles = _profiles(ds, about)
    text = f"{cube_text(about)}\n\n{profile_text(profiles)}"
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


def of_table(path: Path) -> Description | None:
    """Describe a table, or several in a folder or by a pattern."""
    from data_prep.readers.formats import names_table
    from data_prep.readers.open import is_pattern, tables_in

    if path.is_dir():
        return _table(path) if tables_in(path)[0] else None
    return _table(path) if is_pattern(path) or names_table(path.name) else None


def _table(path: Path) -> Description:
    """Describe a table, also one whose gaps and repeated rows need an option."""
    from data_prep.cube import warn_of_services
    from data_prep.description import describe_cube
    from data_prep.readers.origin import collecting_notes
    from data_prep.sets.table import read

    options: dict[str, Any] = {}
    problems: list[str] = []
    while True:
        try:
            with collecting_notes() as notes:
                ds = read(path, **options)
            break
        except InputError as e:
            asks = e.names("clock") or e.names("resample") or e.names("cell")
            if e.names("allow_gaps") and not (asks or "allow_gaps" in options):
                options["allow_gaps"] = True
            elif e.names("duplicates") and not (asks or "duplicates" in options):
                options["duplicates"] = "mean"
            else:
                return _unclear(path, e, notes)
            problems.append(e.typed)
    warn_of_services(ds, path)
    about = describe_cube(ds)
    profiles = _profiles(ds, about)
    steps = f"how it is read\n{steps_text(notes)}"
    parts = [cube_text(about), steps, *problems, profile_text(profiles)]
    words = ["--allow-gaps"] if "allow_gaps" in options else []
    words += ["--duplicates", "mean"] if "duplicates" in options else []
    if profiles:
        empty = ds[next(iter(profiles))].isnull().all("time").to_numpy()
        cells = ",".join(map(str, ds["cell"].to_numpy()[empty]))
        words += ["--cells", f"not:{cells}"] if cells else []
    counters = [name for name, found in profiles.items() if found["counters"]]
    if counters and counters[0] == next(iter(profiles)) and about["step_minutes"]:
        words += ["--resample", f"{about['step_minutes']:g}min", "--agg", "increase"]
        words += ["--values", ",".join(counters)] if len(about["services"]) > 1 else []
    about |= {"profile": profiles, "problems": problems, **notes_of(notes)}
    text = "\n\n".join([*parts, preview(ds)])
    return Description("table", about, text, _forecast(path, about, words), ds)


def _unclear(path: Path, error: InputError, notes: Sequence[Note]) -> Description:
    """Describe a table that `prepare` refuses without options: its columns and the question."""
    from data_prep.readers.decode import read_table
    from data_prep.readers.options import TableOptions

    question, kind = error.typed, "table, not clear without options"
    command, more = f"stforecast prepare table --raw {quote(str(path))}", ""
    untabled = any(map(error.names, ("object_class", "query", "records")))
    if len(error.offers) == 1:
        more = f"{command} {error.offers[0]} --dry-run"
    elif untabled or error.offers:  # Which offer is right, the user knows.
        one = "one of the options" if error.offers else "the option"
        more = f"{command} --dry-run, with {one} named above"
    try:
        if untabled or not path.is_file() or path.suffix.lower() == ".zip":
            raise error
        df, _ = read_table(path, options=TableOptions(no_header=error.names("no_header")))
    except InputError:
        if not more:
            raise
        return Description(kind, {"problem": question, **notes_of(notes)}, question, more)
    columns = {str(name): str(column.iloc[0]) for name, column in df.items()} if len(df) else {}
    about = {"rows": len(df), "columns": columns, "problem": question, **notes_of(notes)}
    text = facts({"rows": f"{len(df):,}", "columns": f"{len(columns)}, with the first row:"})
    lines = [f"    {name}: {value}" for name, value in columns.items()]
    if len(lines) > 12:
        lines[12:] = [f"    …: {len(lines) - 12} more"]
    steps = ["how it is read", steps_text(notes), ""] if notes else []
    text = "\n".join([text, *lines, "", *steps, question])
    return Description(kind, about, text, more)


def _prepare(name: str, raw: Path) -> str:
    return f"stforecast prepare {name} --raw {quote(str(raw))} --out {name}.nc"

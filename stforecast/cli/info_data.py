"""Descriptions of data for `stforecast info`: cubes, tables and raw records."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.base.errors import counted, some
from data_prep.readers.origin import STEPS, Note

if TYPE_CHECKING:
    import xarray as xr


LABEL = 11
"""Width of the labels before the facts."""

ROWS, COLUMNS = 5, 6
"""Number of rows and cells of a preview."""


def facts(labelled: Mapping[str, str]) -> str:
    """Return labelled facts, one on each line; empty ones are left out.

    >>> print(facts({"cells": "25", "roads": ""}))
      cells      25
    """
    return "\n".join(f"  {label:{LABEL}}{text}" for label, text in labelled.items() if text)


def cube_text(about: Mapping[str, Any]) -> str:
    """Return the result of `data_prep.description.describe_cube` as text."""
    services = about["services"]
    head = facts(cube_facts(about))
    return "\n\n".join(filter(None, [head, _services(services), _notes(services)]))


def cube_facts(about: Mapping[str, Any]) -> dict[str, str]:
    """Return what a cube is, in words."""
    return {
        "title": about["title"],
        "period": period(about),
        "steps": f"{counted(about['steps'], 'step')} of {step_text(about['step_minutes'])}",
        "cells": _cells(about),
        "source": f"{about['source']}; licence: {about['license']}",
        "files": _checksums(about["checksums"]),
    }


def profile_text(profiles: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the results of `data_prep.description.profile` by service as text."""
    return "\n".join(filter(None, map(_one_profile, profiles, profiles.values())))


def _one_profile(name: str, found: Mapping[str, Any]) -> str:
    parts = profile_facts(found)
    return f"{name}\n{facts(parts)}" if any(parts.values()) else ""


def profile_facts(found: Mapping[str, Any]) -> dict[str, str]:
    """Return what a profile found in words, by what it is about; empty where there is nothing."""
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


MOST_NOTES = 4
"""Lines of one step that are shown."""


def steps_text(notes: Sequence[Note]) -> str:
    """Return what each step of reading found and decided, one line each; `!` marks what it changed.

    >>> steps_text([Note("rows", 30, "a.csv", "left out 1 row: totals")])
    '  rows       ! left out 1 row: totals'
    """
    found: dict[str, dict[str, list[str]]] = {step: {} for step in STEPS}
    for note in sorted(notes, key=lambda note: note.level > logging.DEBUG):
        tables = found[note.step].setdefault("! " * note.is_warning + note.text, [])
        tables += [note.table] if note.table not in tables else []
    shown = []
    for step, texts in found.items():
        n_tables = len({name for tables in texts.values() for name in tables})
        lines = [f"{_which(tables, n_tables)}{text}" for text, tables in texts.items()]
        if (more := len(lines) - MOST_NOTES) > 0:
            lines[MOST_NOTES:] = [f"… ({more} more)"]
        shown += [facts({step if i == 0 else "": line}) for i, line in enumerate(lines)]
    return "\n".join(shown)


def _which(tables: Sequence[str], n_tables: int) -> str:
    """Return of which tables a text is, if not of all."""
    more = f" and {len(tables) - 1} more" if len(tables) > 1 else ""
    return f"{tables[0]}{more}: " if len(tables) < n_tables else ""


def notes_of(notes: Sequence[Note]) -> dict[str, Any]:
    """Return what steps found for JSON: `steps`, and as `notes` what they changed."""
    changed = [f"{note.table}: {note.text}" for note in notes if note.is_warning]
    steps = [{"step": n.step, "table": n.table, "text": n.text} for n in notes]
    return {"steps": steps} | ({"notes": changed} if changed else {})


def preview(ds: xr.Dataset) -> str:
    """Return the first rows of each service, as they are understood."""
    from tabulate import tabulate

    from data_prep.cube import local_time, observed, services_of

    tables = []
    cells = [str(cell) for cell in ds.indexes["cell"][:COLUMNS]]
    more = ds.sizes["cell"] - len(cells)
    heads = [*cells, *([f"… {more} more"] if more > 0 else [])]
    times = local_time(ds)[:ROWS].strftime("%Y-%m-%d %H:%M")
    for name in services_of(ds):
        values = observed(ds, name)[:ROWS, :COLUMNS].to_numpy()
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
    for unit, length in (("day", 1440), ("hour", 60)):
        if minutes >= length and minutes % length == 0:
            return counted(int(minutes // length), unit)
    return f"{minutes:g} minutes"


def zone_text(zone: str) -> str:
    """Say on which clock a model's data are.

    >>> zone_text("Europe/Rome"), zone_text("local")
    ('in Europe/Rome', 'without a zone')
    """
    return "without a zone" if zone in ("", "local") else f"in {zone}"


def period(about: Mapping[str, Any]) -> str:
    """Return the span of a cube in local time, with its zone."""
    zone = about["time_zone"]
    clock = f"local time, {zone}" if about["clock"] == "local" or zone != "UTC" else "UTC"
    return f"{about['first'][:16]} to {about['last'][:16]} ({clock})"


def _cells(about: Mapping[str, Any]) -> str:
    names = ", ".join(map(str, about["first_cells"]))
    more = ", …" if about["cells"] > len(about["first_cells"]) else ""
    known = [what for what in ("places", "roads") if about[what]]
    return f"{about['cells']}: {names}{more}" + (f"; {' and '.join(known)} known" if known else "")


def _checksums(checksums: Mapping[str, str]) -> str:
    if not checksums:
        return ""
    name, checksum = next(iter(checksums.items()))
    text = f"{name} {checksum[:23]}…"
    return text if len(checksums) == 1 else f"{len(checksums)}, such as {text}"


def _services(services: Mapping[str, Mapping[str, Any]]) -> str:
    from tabulate import tabulate

    rows = []
    for name, s in services.items():
        numbers = [_number(s[n]) for n in ("min", "mean", "max")]
        units = "none" if s["units"] == "1" else s["units"]
        rows.append([name, units, *numbers, f"{100 * s['missing']:.1f} %"])
    heads = ["service", "unit", "min", "mean", "max", "missing"]
    return tabulate(rows, headers=heads, disable_numparse=True)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


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


DAYS = {"milan": "sms-call-internet-mi-", "trentino": "sms-call-internet-tn-"}
"""Beginning of the names of raw days, by data set."""


SENSORS = {"207": "metr-la", "325": "pems-bay", "8600": "largest"}
"""Data sets that are published as a table of pandas, by the number of its columns."""

LAYOUTS = {
    "pandas": "a table that pandas saved, a column for each sensor",
    "fedda": "layout of FedDA's files",
    None: "no known layout",
}


def raw_days(folder: Path) -> tuple[str, list[Path]] | None:
    """Return the data set and the files of raw days in a folder; None without any."""
    for name, prefix in DAYS.items():
        if files := sorted(p for p in folder.glob(f"{prefix}*") if p.is_file()):
            return name, files
    return None


def describe_days(folder: Path, name: str, files: Sequence[Path]) -> dict[str, Any]:
    """Describe a folder of raw days by its names; the records are not read."""
    import datetime

    from data_prep.city.simulate import read_marker

    found = [re.search(r"(\d{4}-\d{2}-\d{2})\.", p.name) for p in files]
    dates = sorted({datetime.date.fromisoformat(match[1]) for match in found if match})
    span = (dates[-1] - dates[0]).days + 1 if dates else 0
    whole = {dates[0] + datetime.timedelta(days=i) for i in range(span)}
    simulation = read_marker(folder)
    return {
        "data_set": name,
        "files": len(files),
        "bytes": sum(p.stat().st_size for p in files),
        "first": str(dates[0]) if dates else None,
        "last": str(dates[-1]) if dates else None,
        "missing": [str(day) for day in sorted(whole - set(dates))],
        "hourly": all(p.suffix == ".csv" for p in files),
        "simulated": simulation.source if simulation else None,
    }


def days_text(about: Mapping[str, Any]) -> str:
    """Return the description of raw days as text."""
    kind = "hourly copy of the days" if about["hourly"] else "raw days"
    return facts(
        {
            "records": f"{kind} of {about['data_set']}, Telecom Italia's layout",
            "files": f"{about['files']}, {about['bytes'] / 1e6:,.1f} MB",
            "days": f"{about['first']} to {about['last']}",
            "missing": some(about["missing"], 5),
            "note": about["simulated"] or "",
        }
    )


def describe_arrays(path: Path) -> dict[str, Any]:
    """Describe the arrays of an HDF5 file, and the data set that is published so.

    Of a table of pandas that is the data set with as many columns, if any.
    """
    import h5py

    from data_prep.readers.hdf5 import open_hdf5

    arrays: dict[str, str] = {}
    with open_hdf5(path, "as HDF5", "give a cube, or records in the layout of a data set") as file:

        def add(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset):
                shape = " × ".join(map(str, item.shape)) or "single value"
                arrays[name] = f"{shape} {item.dtype}"

        file.visititems(add)
    about = {"bytes": path.stat().st_size, "arrays": arrays}
    if {"idx", "cell"} <= set(arrays):
        return {"layout": "fedda", "data_set": "fedda-h5", **about}
    table = next((text for name, text in arrays.items() if name.endswith("block0_values")), None)
    if table is None:
        return {"layout": None, "data_set": None, **about}
    columns = re.search(r"× (\d+) ", table)
    return {"layout": "pandas", "data_set": SENSORS.get(columns[1] if columns else ""), **about}


def arrays_text(about: Mapping[str, Any]) -> str:
    """Return the description of an HDF5 file as text."""
    lines = {
        "records": f"HDF5, {LAYOUTS[about['layout']]}",
        "data set": _guess(about["data_set"]) if about["layout"] == "pandas" else "",
        "size": f"{about['bytes'] / 1e6:,.1f} MB",
    }
    return "\n".join([facts(lines), *(f"    {n}: {s}" for n, s in about["arrays"].items())])


def _guess(data_set: str | None) -> str:
    """Say which data set a table of pandas may be."""
    if data_set is None:
        return f"not known; {', '.join(SENSORS.values())} are published so: stforecast prepare NAME"
    return f"{data_set}, by the number of columns; another set may have as many"

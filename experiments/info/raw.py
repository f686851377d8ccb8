"""Descriptions of raw records: days of Telecom Italia, and HDF5 files of sensors or of FedDA."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep.base.text import some
from experiments.info.cubes import facts

DAYS = {"milan": "sms-call-internet-mi-", "trentino": "sms-call-internet-tn-"}
"""Beginning of the names of raw days, by data set."""


SENSORS = {"207": "metr-la", "325": "pems-bay", "8600": "largest"}
"""Data sets that are published as a table of pandas, by the number of its columns."""

LAYOUTS = {
    "pandas": "a table that pandas saved, a column for each sensor",
    "fedda": "layout of FedDA's files",
    None: "no known layout",
}


def find_days(folder: Path) -> tuple[str, list[Path]] | None:
    """Return the data set and the files of raw days in a folder; None without any."""
    for name, prefix in DAYS.items():
        if files := sorted(p for p in folder.glob(f"{prefix}*") if p.is_file()):
            return name, files
    return None


def describe_days(folder: Path, name: str, files: Sequence[Path]) -> dict[str, Any]:
    """Describe a folder of raw days by its names; the records are not read.

    Returns:
        `data_set`, `files`, `bytes`, `first`, `last` and `missing` days, `hourly`, whether they are
        the hourly copy, and `simulated`, their origin if they were invented.

    Raises:
        InputError: if the marker of a simulation is damaged.
    """
    import datetime

    from data_prep.city.simulate import read_marker

    found = [re.search(r"(\d{4}-\d{2}-\d{2})\.", p.name) for p in files]
    dates = sorted({datetime.date.fromisoformat(match[1]) for match in found if match})
    span = (dates[-1] - dates[0]).days + 1 if dates else 0
    whole = {dates[0] + datetime.timedelta(days=i) for i in range(span)} if dates else set()
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
    """Describe the arrays of an HDF5 file.

    Returns:
        `layout`, "pandas" or "fedda" if it is known; `data_set` that is published so, in a table of
        pandas the one that has as many columns, if any; `bytes`, and `arrays` by name.

    Raises:
        InputError: if it cannot be read.
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

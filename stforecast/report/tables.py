"""Tables of a page, compact forms of texts and arrays, and sheets of data and runs."""

from __future__ import annotations

import base64
import gzip
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, counted, some
from data_prep.cube import services_of
from data_prep.described import cube_facts, profile_facts
from data_prep.description import describe_cube, profile
from data_prep.readers.units import with_unit
from stforecast.bench.kind import kind_named, usual_settings
from stforecast.bench.run_groups import R, RunGroup
from stforecast.bench.tables import number, versions_of
from stforecast.comparison.rows import folds_of
from stforecast.federated.runs.run_folder import Run
from stforecast.forecasting.results import ForecastRun, data_of


@dataclass(frozen=True)
class Table:
    """A table that sorts by any column.

    Attributes:
        caption: title of the table.
        rows: texts by column; a missing entry is a dash.
        notes: sentences below it.
        opens: column whose entries are cells that a click shows; empty for none.
        marks: column whose entries are coloured by their text; empty for none.
    """

    caption: str
    rows: Sequence[Mapping[str, str]]
    notes: Sequence[str] = field(default=())
    opens: str = ""
    marks: str = ""

    @property
    def columns(self) -> list[str]:
        """Names of all columns, in the order of their first use."""
        return list(dict.fromkeys(name for row in self.rows for name in row))


MOST_ROWS = 50
"""Rows of a table, which prints; files have the rest."""


def rest(shown: int, n: int, file: str) -> list[str]:
    """Return a note on the rows that a table leaves out, if there are any."""
    return [f"{shown} of {n}; all are in {file}."] if n > shown else []


def share(value: float) -> str:
    """Format a share in per cent.

    >>> share(0.876), share(0.00004), share(0.0)
    ('87.6 %', '< 0.1 %', '0 %')
    """
    if not math.isfinite(value):
        return "-"
    if not value:
        return "0 %"
    return "< 0.1 %" if value < 0.0005 else f"{100 * value:.1f} %"


def axis_times(times: pd.DatetimeIndex) -> list[str]:
    """Return the places of times on an axis of the wall clock, as text, in the order of time.

    An hour that the clock shows twice is drawn twice in the width of one, so that no line runs
    back.
    """
    local = times.tz_localize(None)
    if times.tz is not None:
        summer, winter = (
            local.tz_localize(times.tz, ambiguous=np.full(len(local), is_summer))
            for is_summer in (True, False)
        )
        width = (winter - summer).max()
        if width > pd.Timedelta(0):
            begin = local.floor(width)
            halved = begin + (local - begin + width * (times == winter).astype(int)) / 2
            local = local.where(winter == summer, halved)
    return local.strftime("%Y-%m-%d %H:%M:%S").str.removesuffix(":00").tolist()


def axis_title(clock: str, times: pd.DatetimeIndex) -> str:
    """Return the title of an axis of `axis_times`, from the name of its clock."""
    squeezed = axis_times(times) != times.strftime("%Y-%m-%d %H:%M").tolist()
    return (
        f"{clock}; an hour that the clock shows twice has the width of one" if squeezed else clock
    )


LEVELS = 4094
"""Steps between the lowest and the highest value of a row; the level after marks a missing value.
So a value is exact to four digits of its row's range, and takes 12 bits before compression."""


class Arrays:
    """Arrays of a page, one after the other in one block of bytes, little-endian."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def floats(self, values: np.ndarray) -> dict[str, object]:
        """Add an array in single precision and return what the page needs to find it."""
        return self._add("floats", np.asarray(values, dtype="<f4"))

    def rows(self, values: np.ndarray) -> dict[str, object]:
        """Add an array `(rows, columns)` with a scale for each row; high bytes come first.

        Values that are not finite become missing.
        """
        finite = np.isfinite(values)
        low = np.where(finite, values, np.inf).min(axis=1, initial=np.inf)
        high = np.where(finite, values, -np.inf).max(axis=1, initial=-np.inf)
        low = np.where(np.isfinite(low), low, 0.0)
        reach = np.where(np.isfinite(high), high - low, 0.0)
        step = np.where(reach > 0, reach / LEVELS, 1.0)  # In double precision, as `low` is.
        rounded = np.round(np.where(finite, values - low[:, None], 0.0) / step[:, None])
        levels = np.where(finite, rounded, LEVELS + 1).astype(np.uint16)
        planes = np.stack([levels >> 8, levels & 255]).astype(np.uint8)
        return {
            **self._add("rows", planes),
            "shape": list(values.shape),
            "low": self.floats(low),
            "step": self.floats(step),
        }

    def bytes(self) -> bytes:
        """Return the whole block."""
        return b"".join(self._parts)

    def _add(self, kind: str, values: np.ndarray) -> dict[str, object]:
        start = self._size
        block = values.tobytes()
        self._parts.append(block + bytes(-len(block) % 4))  # views need aligned offsets
        self._size += len(self._parts[-1])
        return {"kind": kind, "at": start, "shape": list(values.shape)}


def packed(content: bytes | str) -> str:
    """Return a text or bytes, compressed, as ASCII that may stand in any element."""
    raw = content.encode() if isinstance(content, str) else content
    return base64.b64encode(gzip.compress(raw, 9, mtime=0)).decode()


def as_json(content: Any) -> str:
    """Return JSON with six digits a number, and null for numbers that are not finite."""
    return json.dumps(_plain(content), allow_nan=False, separators=(",", ":"))


def _plain(content: Any) -> Any:
    if isinstance(content, dict):
        return {str(name): _plain(value) for name, value in content.items()}
    if isinstance(content, np.ndarray):
        return _plain(content.tolist())
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    if isinstance(content, float):
        return float(f"{content:.6g}") if math.isfinite(content) else None
    return content


@dataclass(frozen=True)
class DataSheet:
    """What is known of the data: facts, and checksums of the source files."""

    facts: dict[str, str]
    checksums: dict[str, str] = field(default_factory=dict)


def data_sheet(run: ForecastRun, cube: xr.Dataset | None) -> DataSheet:
    """Describe the data of a run as `stforecast info` does; None if they no longer exist."""
    path, name = data_of(run.about), run.about["service"]
    if cube is None:
        gone = f"{path}: no longer exist, so their gaps and sources are unknown"
        return DataSheet({"data": gone, "service": with_unit(name, run.about["units"])})
    about = describe_cube(cube.drop_vars([other for other in services_of(cube) if other != name]))
    service = about["services"][name]
    outliers = {f"{n} of cell {cell}": n for cell, n in run.about.get("outliers", {}).items()}
    readings = counted(sum(outliers.values()), "reading")
    facts = {
        "data": str(path),
        **cube_facts(about),
        "forecast": counted(int(run.about.get("clients", about["cells"])), "cell"),
        "service": with_unit(str(cube[name].attrs.get("long_name", name)), service["units"]),
        "a zero is": "missing" if service["zero_is_missing"] else "a value",
        **({} if service["blank"] else profile_facts(profile(cube, name))),
        "left out as outliers": f"{readings}: {some(outliers)}" if outliers else "none",
    }
    return DataSheet({topic: fact for topic, fact in facts.items() if fact}, about["checksums"])


@dataclass(frozen=True)
class RunsSheet:
    """How runs were made: dates, settings, the command of each method, versions of packages."""

    dates: Table | None
    settings: Table
    commands: dict[str, str]
    versions: str


def runs_sheet(groups: Sequence[RunGroup[R]], dates: Table | None = None) -> RunsSheet:
    """Describe the runs of one task, and the commands that make them again."""
    rows: dict[str, dict[str, str]] = {}
    for group in groups:
        for name, value in group.runs[0].settings.items():
            row = rows.setdefault(name, {"setting": name})
            if isinstance(value, bool):
                row[group.name] = "yes" if value else "no"
            elif value is not None:
                row[group.name] = number(value) if isinstance(value, float) else str(value)
    return RunsSheet(
        dates,
        Table("All settings, as given", [*rows.values()]),
        {group.name: repeat_command(group.runs[0]) for group in groups},
        versions_of(run for group in groups for run in group.runs),
    )


def dates(groups: Sequence[RunGroup[ForecastRun]]) -> Table:
    """Tabulate the first and last targets of each part of the forecast runs of one task."""
    rows = []
    for number_of_fold, run in folds_of(run for g in groups for run in g.runs).items():
        parts = run.about.get("parts") or {}
        fold = {"fold": str(number_of_fold)} if number_of_fold else {}
        rows += [
            {**fold, "part": part, "first target": span["first"], "last target": span["last"]}
            for part, span in parts.items()
            if span
        ]
    return Table("Dates, on the clock of the data", rows)


def repeat_command(run: Run) -> str:
    """Return the command that repeats a run, with the settings that are not the usual ones."""
    try:
        usual, settings = usual_settings(run), kind_named(run.about).settings
        own = settings.defaults(run.method)
        usual |= {name: own[name] for name in settings.depends_on}
    except InputError:  # Its method, or the like, is not installed here.
        usual = {}
    words = [*run.command.split(), "--method", run.method]
    words += [] if "data" in run.settings else ["--data", str(data_of(run.about))]
    for name, value in run.settings.items():
        if name == "method" or value is None or (name in usual and usual[name] == value):
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    words += ["--label", run.label] if run.label != run.method else []
    return shlex.join([*words, "--out", "FOLDER"])

"""Results of benchmarks, in files next to the pages of `docs/results/`.

A page `PAGE.md` names its benchmarks in a line `<!-- benchmarks: who_wins_*, fedlean -->`. Their
numbers lie in the folder `PAGE/`: `benchmarks.json` has the commands and the sentences on the
numbers, and `methods.csv` has a row for each method of each data set. Tables that are not about
methods have files of their own: `stages.csv`, `claims.csv`, `clients.csv` and `folds.csv`. Of a
column `NAME`, `NAME_low` and `NAME_high` are the ends of 95 % intervals, and `NAME_sd` is the
standard deviation over seeds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from data_prep.base.errors import InputError, counted, no_file
from data_prep.base.files import atomic_path

RESULTS = Path(__file__).parents[2] / "docs" / "results"

Row = dict[str, Any]
Tables = dict[str, list[Row]]
"""Rows of each kind of table, by the name of its file without its ending."""

NAMES = re.compile(r"^<!-- benchmarks: (.*) -->$", re.M)
KEYS = {
    "folds": ("fold",),
    "claims": ("claim", "of"),
    "clients": ("clients", "division"),
    "stages": ("choosing from", "method"),
    "methods": ("method",),
}
"""Columns that tell the rows of each kind of table apart, besides the data; all have the first."""


class Benchmark(NamedTuple):
    """A benchmark: its command, the sentences on it, and its tables.

    Attributes:
        about: "title", "command", "facts" (such as "written"), "data" by name, and
            "said" and "notes", which are lists of sentences.
        tables: its tables.
    """

    about: dict[str, Any]
    tables: Tables


Benchmarks = dict[str, Benchmark]
"""Benchmarks of a page by name."""


def read_benchmark(found: Mapping[str, Any]) -> Benchmark:
    """Sort what is in the `table.json` of a benchmark.

    >>> parts = ["**a**: 3 cells", [{"method": "solo", "MSE": 0.3}], [{"method": "solo", "p": 1}]]
    >>> read_benchmark({"title": "A", "parts": parts}).tables
    {'methods': [{'data': 'a', 'method': 'solo', 'MSE': 0.3, 'p': 1}]}
    """
    about = {name: value for name, value in found.items() if name != "parts"}
    about |= {"data": {}, "said": [], "notes": []}
    tables: dict[str, dict[tuple[Any, ...], Row]] = {}
    common: Row = {}
    for part in found["parts"]:
        if isinstance(part, list):
            _add(tables, part, common)
        elif part.startswith("**"):
            name, _, told = part.removeprefix("**").partition("**: ")
            common, about["data"][name] = {"data": name}, told
        elif part in ("Ablations:", "Further models:"):
            common = {"data": name} | ({"ablation": "yes"} if part == "Ablations:" else {})
        else:
            about["said" if part.startswith("On ") else "notes"].append(part)
    return Benchmark(about, {kind: [*rows.values()] for kind, rows in tables.items()})


def _add(tables: dict[str, dict[tuple[Any, ...], Row]], rows: Sequence[Row], common: Row) -> None:
    """Add the rows of a table; rows that are known get the columns that they lack."""
    kind, keys = next((kind, keys) for kind, keys in KEYS.items() if keys[0] in rows[0])
    for row in rows:
        found = dict(row) if kind == "claims" else common | row
        if found.get("reference") == found.get("method"):  # It is no change to itself.
            found.pop("ablation", None)
        name = tuple(found.get(key) for key in ("data", *keys))
        known = tables.setdefault(kind, {}).setdefault(name, found)
        known.update(found | known)


def benchmarks_of(page: Path) -> Benchmarks:
    """Return the benchmarks of a page, in the page's order."""
    folder = page.with_suffix("")
    if not (folder / "benchmarks.json").exists():
        return {}
    every = json.loads((folder / "benchmarks.json").read_text())
    benchmarks = {name: Benchmark(about, {}) for name, about in every.items()}
    for path in sorted(folder.glob("*.csv")):
        table = pd.read_csv(path, keep_default_na=False, na_values="")
        rows: list[Any] = table.to_dict("records")
        for row in rows if "benchmark" in table else []:
            own = benchmarks[row.pop("benchmark")].tables
            known = {name: value for name, value in row.items() if pd.notna(value)}
            own.setdefault(path.stem, []).append(known)
    return benchmarks


def chosen(benchmarks: Benchmarks, patterns: Sequence[str]) -> Benchmarks:
    """Return the benchmarks whose names match one of the patterns."""
    return {
        name: benchmark
        for name, benchmark in benchmarks.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def of_page(page: str, *patterns: str) -> Benchmarks:
    """Return the benchmarks of a page of docs/results whose names match one of the patterns."""
    return chosen(benchmarks_of(RESULTS / f"{page}.md"), patterns)


def save(page: Path, benchmarks: Benchmarks) -> None:
    """Write the benchmarks of a page to its folder."""
    folder = page.with_suffix("")
    about = {name: benchmark.about for name, benchmark in benchmarks.items()}
    with atomic_path(folder / "benchmarks.json") as part:
        part.write_text(f"{json.dumps(about, indent=1, ensure_ascii=False)}\n")
    for kind in sorted({kind for b in benchmarks.values() for kind in b.tables}):
        rows = [
            {"benchmark": name, **row}
            for name, benchmark in benchmarks.items()
            for row in benchmark.tables.get(kind, [])
        ]
        with atomic_path(folder / f"{kind}.csv") as part:
            table = pd.DataFrame(rows)
            table.to_csv(part, index=False, lineterminator="\n", float_format="%.10g")


def pages(results: Path) -> list[Path]:
    """Return the pages that show benchmarks, by title."""
    found = [path for path in results.glob("*.md") if NAMES.search(path.read_text())]
    return sorted(found, key=lambda path: path.read_text().casefold())


def page_of(name: str, results: Path) -> Path:
    """Return the page that names a benchmark.

    Raises:
        InputError: if no page does, or several do.
    """
    every = {page: NAMES.findall(page.read_text())[0].split(", ") for page in pages(results)}
    found = [page for page, names in every.items() if any(fnmatchcase(name, n) for n in names)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(page.name for page in found or every)
    wrong = "pages name this benchmark" if found else "no page names this benchmark"
    raise InputError(
        f"{name}: {wrong} ({known}); name it in the line <!-- benchmarks: … --> of one page in "
        f"{results}"
    )


def read_folder(folder: Path) -> Benchmark:
    """Read what `stforecast bench` wrote."""
    path = folder / "table.json"
    if not path.is_file():
        raise no_file(
            path,
            "table",
            "give folders that `stforecast bench` wrote; repeat an older one's command",
        )
    return read_benchmark(json.loads(path.read_text()))


def described(name: str, told: str) -> str:
    """Return the data of forecasts, such as "milan, 25 cells, 1 step ahead"; the name of others.

    >>> described("milan, calls", "25 cells, 3 folds, 1 step(s) ahead, z-scores by cell")
    'milan, 25 cells, 1 step ahead'
    >>> described("pacs", "20 clients, 7 classes")
    'pacs'
    """
    found = re.match(r"(\d+ cells),.*? (\d+) step.*? ahead", told)
    if not found:
        return name
    return f"{name.partition(',')[0]}, {found[1]}, {counted(int(found[2]), 'step')} ahead"

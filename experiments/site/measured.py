"""What benchmarks measured, in files beside the pages of `docs/results/`.

A page `PAGE.md` names its benchmarks in a line `<!-- benchmarks: who_wins_*, fedlean -->`. Their
numbers lie in the folder `PAGE/`: `benchmarks.json` tells what ran and what the numbers show, and
`methods.csv` has a row for each method of each data set. Tables that are not about methods have
files of their own: `stages.csv`, `claims.csv`, `clients.csv` and `folds.csv`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from data_prep.base.errors import InputError, counted, no_file
from data_prep.base.files import atomic_path

RESULTS = Path(__file__).parents[2] / "docs" / "results"

Row = dict[str, str]
Tables = dict[str, list[Row]]
"""Rows of each kind of table, by the name of its file without its ending."""

NAMES = re.compile(r"^<!-- benchmarks: (.*) -->$", re.M)
POOLED = " †"
"""Mark of methods that train on the data of all clients together."""

KEYS = {"stages": "choosing from", "claims": "of"}
"""Second column that tells rows of these tables apart."""

AGAINST = re.compile(r"^(?P<what>.*?)against (?P<reference>.+?)(?:, %)?$")
"""Head of a column of differences from a reference method."""


class Benchmark(NamedTuple):
    """A benchmark: what ran, the sentences on it, and its tables.

    Attributes:
        about: "title", "command", "facts" (such as "written"), "data", and "said" and "notes",
            which are lists of sentences.
        tables: its tables.
    """

    about: dict[str, Any]
    tables: Tables


Benchmarks = dict[str, Benchmark]
"""Benchmarks of a page by name."""


def read_benchmark(text: str) -> Benchmark:
    r"""Read the `table.md` of a benchmark.

    >>> read_benchmark("# A\n\n| method | MSE |\n|---|---|\n| solo | 0.3 |\n").tables["methods"]
    [{'method': 'solo', 'MSE': '0.3'}]
    """
    about: dict[str, Any] = {"facts": {}, "data": [], "said": [], "notes": []}
    tables: Tables = {}
    common: Row = {}
    for part in re.split(r"\n{2,}", text.strip()):
        words = " ".join(part.split())
        if part.startswith("|"):
            _add(tables, part, common)
        elif part.startswith("#"):
            about["title"] = words.lstrip("# ")
        elif part.startswith("    "):
            about["command"] = words
        elif part.startswith("- written:"):
            facts = re.split(r"(?:^|\s)- ", words)[1:]
            about["facts"] = dict(fact.split(": ", 1) for fact in facts)
        elif part.startswith("**"):
            common = {"data": words[2:].partition("**")[0]}
            about["data"].append(words)
        elif words == "Ablations:":
            common = common | {"ablation": "yes"}
        elif part.startswith("On "):
            about["said"].append(words)
        elif not part.startswith("![") and words != "Figures:":
            about["notes"].append(words)
    return Benchmark(about, tables)


def _add(tables: Tables, text: str, common: Row) -> None:
    """Add a Markdown table; rows that are known get the columns that they lack."""
    head, _, *body = (_cells(line) for line in text.splitlines())
    kind = {"fold": "folds", "claim": "claims", "clients": "clients"}.get(head[0], "methods")
    if kind == "methods" and "choosing from" in head:
        kind = "stages"
    keys = ["data", head[0], KEYS.get(kind, head[0])]
    rows = tables.setdefault(kind, [])
    known = {tuple(row.get(key) for key in keys): row for row in rows}
    for cells in body:
        found = ({} if kind == "claims" else common) | dict(zip(head, cells, strict=True))
        if found.get("method", "").endswith(POOLED):
            found |= {"method": found["method"].removesuffix(POOLED), "pools": "yes"}
        if kind == "methods":
            found = _without_reference(found)
        if found.get("against reference") == "-":  # The reference is no change to itself.
            found.pop("ablation", None)
        name = tuple(found.get(key) for key in keys)
        if name in known:
            known[name].update(
                {head: cell for head, cell in found.items() if head not in known[name]}
            )
        else:
            rows.append(found)


def _without_reference(row: Row) -> Row:
    """Return a row with the reference in a column of its own, not in heads of columns."""
    found: Row = {}
    for head, cell in row.items():
        if match := AGAINST.match(head):
            found["reference"] = match["reference"]
            head = f"{match['what']}against reference"
        found[head] = cell
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def benchmarks_of(page: Path) -> Benchmarks:
    """Return the benchmarks of a page, in the order in which they are told."""
    folder = page.with_suffix("")
    if not (folder / "benchmarks.json").exists():
        return {}
    every = json.loads((folder / "benchmarks.json").read_text())
    benchmarks = {name: Benchmark(about, {}) for name, about in every.items()}
    for path in sorted(folder.glob("*.csv")):
        rows: list[Any] = pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
        for row in rows if "benchmark" in rows[0] else []:
            own = benchmarks[row.pop("benchmark")].tables
            own.setdefault(path.stem, []).append({k: v for k, v in row.items() if v})
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
            pd.DataFrame(rows).to_csv(part, index=False, lineterminator="\n")


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
    path = folder / "table.md"
    if not path.is_file():
        raise no_file(path, "table", "give folders that `stforecast bench` wrote")
    return read_benchmark(path.read_text())


def described(data: str) -> str:
    """Return the data of forecasts, such as "milan, 25 cells, 1 step ahead"; the name of others.

    >>> described("**milan, calls**: 25 cells, 3 folds, 1 step(s) ahead, z-scores by cell")
    'milan, 25 cells, 1 step ahead'
    >>> described("**pacs**: 20 clients, 7 classes")
    'pacs'
    """
    found = re.match(r"\*\*([^*,]+),[^*]*\*\*: (\d+ cells),.*? (\d+) step.*? ahead", data)
    if not found:
        return data[2:].partition("**")[0]
    return f"{found[1]}, {found[2]}, {counted(int(found[3]), 'step')} ahead"

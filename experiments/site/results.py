"""The benchmarks of the pages of `docs/results/`, and the answers to papers' claims.

A page lists its benchmarks in the part `made`. A page of `docs/papers/` of the same name may have
the part `answers`: the answers to the paper's claims.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.base.files import atomic_path
from experiments.site import images
from experiments.site.markdown import replaced, shrunk
from experiments.site.measured import (
    Benchmark,
    Benchmarks,
    benchmarks_of,
    page_of,
    pages,
    read_folder,
    save,
)
from stforecast.bench.kept import ARCHIVE
from stforecast.bench.tables import markdown
from stforecast.forecasting.probe import TOLERANCE, probe
from vision.cli.compare import HEADING

PROBE = re.compile(r"(\w+), (\d+) days: ([\d.e-]+)")
"""A benchmark's fact on its method: how it forecasts a series of so many days."""

UNNOTED = "their code noted nothing to compare it with"
"""Reason where a benchmark has no such fact."""


def gather(folders: Sequence[Path], results: Path) -> None:
    """Put the results of benchmarks next to their pages, and update these.

    Other benchmarks and all other text of the pages are kept. Of the figures, those that a page
    shows are copied to `../figures/`; the archive with the sums of errors becomes `NAME.tar.xz`.

    Raises:
        InputError: if a folder has no table, two have the same name, or not exactly one page names
            a benchmark.
    """
    found = {folder.resolve().name: read_folder(folder) for folder in folders}
    if len(found) < len(folders):
        raise InputError("two of these folders have the same name; rename one")
    places = {name: page_of(name, results) for name in found}
    for page in set(places.values()):
        new = {name: benchmark for name, benchmark in found.items() if places[name] == page}
        save(page, benchmarks_of(page) | new)
    for folder in folders:
        page = places[folder.resolve().name]
        if (folder / ARCHIVE).exists():
            shutil.copy(folder / ARCHIVE, page.with_suffix("") / f"{folder.resolve().name}.tar.xz")
        shown = page.read_text()
        for figure in sorted((folder / "figures").glob("*.png")):
            copy = results.parent / "figures" / f"{folder.resolve().name}-{figure.name}"
            if f"(../figures/{copy.name})" in shown:
                with atomic_path(copy) as part:
                    part.write_bytes(shrunk(figure))
    write_pages(results)


def write_pages(results: Path) -> None:
    """Write the generated parts of all pages again."""
    for page in pages(results):
        _write(page, updated(page.read_text(), page))
        paper = results.parent / "papers" / page.name
        if paper.is_file():
            _write(paper, with_answers(paper.read_text(), page))


def updated(text: str, page: Path) -> str:
    """Return the text of a page with the list of its benchmarks, and which are out of date."""
    text = replaced(text, "age", lambda: older(benchmarks_of(page)))
    return replaced(text, "made", lambda: made(benchmarks_of(page)))


def older(benchmarks: Benchmarks) -> str:
    """Say which benchmarks are out of date, and why."""
    found: dict[str, list[str]] = {}
    for name, benchmark in benchmarks.items():
        if reason := out_of_date(benchmark):
            found.setdefault(reason, []).append(name)
    said = []
    for reason, names in found.items():
        others = [name for name in benchmarks if name not in names]
        which = others if (most := len(others) < len(names)) else names
        links = ", ".join(f"[{name}](#{name})" for name in which)
        begin = "all benchmarks but " if others else "all benchmarks"
        said.append(f"{begin * most}{links} ({reason})")
    return f"\n**Older than the code:** {'; '.join(said)}.\n" if said else ""


def out_of_date(benchmark: Benchmark) -> str:
    """Return why a benchmark may be out of date; empty for images, which note nothing."""
    if noted := PROBE.fullmatch(benchmark.about["facts"].get("probe", "")):
        now = probe(noted[1], int(noted[2]))
        same = abs(now / float(noted[3]) - 1) <= TOLERANCE
        return "" if same else f"since then, `{noted[1]}` forecasts otherwise"
    return UNNOTED if any("MSE" in row for row in benchmark.tables.get("methods", [])) else ""


def made(benchmarks: Benchmarks) -> str:
    """List the benchmarks, by title where it is the only one with this title, else by name."""
    titles = [benchmark.about["title"] for benchmark in benchmarks.values()]
    shown = {n: t if titles.count(t) == 1 else n for n, t in zip(benchmarks, titles, strict=True)}
    return "".join(f'\n- <a id="{name}"></a>{title}' for name, title in shown.items())


def with_answers(paper: str, page: Path) -> str:
    """Return a paper's page with the answers to its claims that its benchmarks give."""
    return replaced(paper, "answers", lambda: _answers(benchmarks_of(page), page))


def _answers(benchmarks: Benchmarks, page: Path) -> str:
    """Tabulate the answers, a row for each claim and a column for each of its data sets."""
    found: dict[str, dict[str, str]] = {}
    for name, benchmark in benchmarks.items():
        for row in benchmark.tables.get("claims", []):
            place = f"[{row['of']}](../results/{page.name}#{name})"
            found.setdefault(row[HEADING], {})[place] = row["answer"] + images.seeds_to_tell(row)
    places = dict.fromkeys(place for answers in found.values() for place in answers)
    empty = dict.fromkeys(places, "")
    return markdown([{HEADING: claim} | empty | answers for claim, answers in found.items()])


def _write(path: Path, text: str) -> None:
    with atomic_path(path) as part:
        part.write_text(text)

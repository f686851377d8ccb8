"""Tables of results as Markdown, and the page of a benchmark."""

from __future__ import annotations

import datetime
import math
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from tabulate import tabulate

from data_prep.atomic import atomic_path
from stforecast.bench.figures import Gallery
from stforecast.bench.run_groups import R
from stforecast.bench.traffic import floats, floats_sent
from stforecast.federated.runs.run import Run
from stforecast.federated.runs.run_folder import write_csv

POOLED_MARK = "†"
"""Mark of rows that pooled the data of all clients."""


def sections(
    runs: Sequence[R],
    failures: Mapping[str, str],
    key: Callable[[R], tuple[str, ...]],
    section: Callable[[Sequence[R]], str],
) -> str:
    """Return Markdown with a section for the runs of each key, then the failures.

    Args:
        runs: finished runs.
        failures: error of each failed run, by name.
        key: function from a run to the key of its section.
        section: function from the runs of one section to Markdown.
    """
    members: dict[tuple[str, ...], list[R]] = {}
    for run in runs:
        members.setdefault(key(run), []).append(run)
    parts = [section(some) for some in members.values()]
    if failures:
        parts.append("Failed:\n\n" + "\n".join(f"- {name}: {e}" for name, e in failures.items()))
    return "\n\n".join(parts)


def markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """Return a Markdown table with dashes for missing entries."""
    return tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True, missingval="-")


def plain(rows: Sequence[Mapping[str, str]]) -> str:
    """Return a table for a terminal."""
    return tabulate(rows, headers="keys", tablefmt="simple", disable_numparse=True)


def latex(rows: Sequence[Mapping[str, str]]) -> str:
    """Return a LaTeX table for the package booktabs."""
    return tabulate(rows, headers="keys", tablefmt="latex_booktabs", disable_numparse=True)


def floats_up_and_down(run: Run) -> str:
    """Return the numbers of floats that a client sends and receives in a round."""
    return " / ".join(f"{floats(run.rounds(), way):,.0f}" for way in ("up", "down"))


def traffic_sentence(run: Run) -> str:
    """Return the floats that a client sends and receives in a round, as a sentence."""
    rounds = run.rounds()
    sent, received, in_all = floats(rounds, "up"), floats(rounds, "down"), floats_sent(rounds)
    if math.isclose(in_all, sent * len(rounds)):
        return f"in a round a client sends {sent:,.0f} floats and receives {received:,.0f}"
    return (
        f"in a round a client sends at most {sent:,.0f} floats and receives {received:,.0f}; it "
        f"sends {in_all:,.0f} in all rounds"
    )


def mean_seconds(runs: Sequence[Run], decimals: int) -> str:
    """Return the mean duration of the runs."""
    return f"{np.mean([run.about['seconds'] for run in runs]):.{decimals}f}"


def facts(runs: Sequence[Run]) -> str:
    """Return Markdown with what is needed to repeat the runs, and when and where it was written."""
    abouts = [run.about for run in runs]
    rounds = {a["settings"]["rounds"] for a in abouts if a.get("federated", True)}
    versions = {f"{p} {v}" for about in abouts for p, v in about.get("versions", {}).items()}
    seconds = sum(about["seconds"] for about in abouts)
    found = {
        "written": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "rounds": ", ".join(map(str, sorted(rounds))),
        "seeds": _seeds(runs),
        "versions": ", ".join(sorted(versions)),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "runs": f"{len(runs)}, {seconds / 60:.1f} minutes in total",
    }
    return "\n".join(f"- {name}: {value}" for name, value in found.items() if value)


def _seeds(runs: Sequence[Run]) -> str:
    """List the seeds of the runs, and the rows that have only some of them."""
    of_rows: dict[str, set[int]] = {}
    for run in runs:
        of_rows.setdefault(run.label, set()).add(run.seed)
    every = set[int]().union(*of_rows.values())
    rows: dict[str, list[str]] = {}
    for label, seeds in of_rows.items():
        if seeds < every:
            rows.setdefault(_listed(seeds), []).append(label)
    fewer = [f"(only {seeds}: {'; '.join(labels)})" for seeds, labels in rows.items()]
    return " ".join([_listed(every), *fewer])


def _listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(seeds)))


def write_page(
    out: Path, title: str, command: str, runs: Sequence[Run], table: str, gallery: Gallery
) -> None:
    """Write `table.md`: command and facts of the runs, the table, the figures.

    Args:
        out: the benchmark's folder.
        title: its heading.
        command: command that repeats it.
        runs: finished runs.
        table: table of their results, as Markdown.
        gallery: its figures.
    """
    parts = [f"# {title}", f"    {command}", facts(runs), table, gallery.markdown(out)]
    with atomic_path(out / "table.md") as part:
        part.write_text("\n\n".join(filter(None, parts)) + "\n")


def write_comparison(
    out: Path, page: Sequence[str], tables: Sequence[str], numbers: pd.DataFrame
) -> None:
    """Write `comparison.md`, `comparison.tex` and `comparison.csv`.

    Args:
        out: folder for them; made if it is not there.
        page: paragraphs of the page.
        tables: LaTeX tables.
        numbers: all numbers, not rounded.
    """
    out.mkdir(parents=True, exist_ok=True)
    for ending, parts in ((".md", page), (".tex", tables)):
        with atomic_path(out / f"comparison{ending}") as part:
            part.write_text("\n\n".join(parts) + "\n")
    write_csv(numbers, out / "comparison.csv")

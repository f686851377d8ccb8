"""Table of what federation is worth between training alone and on pooled data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stforecast.bench.statistics.bootstrap import Replicates
from stforecast.bench.statistics.estimate import Estimate
from stforecast.bench.tables import markdown
from stforecast.comparison.leaderboard import Leaderboard
from stforecast.comparison.names import error_title
from stforecast.comparison.rows import Row
from stforecast.methods import METHODS
from stforecast.results import ForecastRun

ALONE = "solo"
"""Method of training alone."""


class Division(NamedTuple):
    """Rows of one division of the cells into clients.

    Attributes:
        sizes: number of cells of each client.
        roads: counts of the roads between clients; empty if they are not known.
        alone: name of the row that trains alone.
        federated: name of the row of each federated method, by method.
    """

    sizes: list[int]
    roads: dict[str, float]
    alone: str
    federated: dict[str, str]


def worth_table(rows: Sequence[Row], board: Leaderboard, data: str) -> list[str]:
    """Tabulate how much of the gap between training alone and pooled data federation closes.

    Args:
        rows: rows of the leaderboard; those of several divisions into clients are compared if one
            of them is pooled.
        board: their leaderboard.
        data: name of the data.

    Returns:
        Markdown: the table and a sentence for each federated method; empty if nothing is compared.
    """
    pooled = next((row.name for row in rows if in_one_client(row.first)), None)
    divisions = _divisions([row for row in rows if row.name in board.replicates.pooled])
    if pooled is None or len(divisions) < 2:
        return []
    title = error_title(board.metric)
    table = [_cells(division, pooled, board.replicates) for division in divisions]
    methods = list(dict.fromkeys(m for d in divisions for m in d.federated))
    said = [_sentence(m, divisions, pooled, board.replicates, data, title) for m in methods]
    about = (
        f"What federation is worth: its {title} compared with that of training alone and that of "
        "training on pooled data. gap closed: 100 % if the error equals that of pooled data, 0 % "
        "if it equals that of training alone; not given where these two cannot be told apart."
    )
    return [about, markdown(table), *said]


def in_one_client(run: ForecastRun) -> bool:
    """Return whether a federated method's run has all cells in one client."""
    method = METHODS.get(run.method)
    return method is not None and (method.pooled or run.settings.get("clients") == "all")


def _divisions(rows: Sequence[Row]) -> list[Division]:
    """Return the divisions into clients that have a row of training alone, from few to many."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.first.method in METHODS and not in_one_client(row.first):
            found.setdefault(row.first.settings.get("clients", "cell"), []).append(row)
    divisions = []
    for some in found.values():
        names = {row.first.method: row.name for row in some}
        about = some[0].first.about
        if ALONE in names and len(names) > 1:
            alone = names.pop(ALONE)
            sizes = list(about.get("cells_of_clients", {}).values()) or [1] * about["clients"]
            divisions.append(Division(sizes, about.get("roads", {}), alone, names))
    return sorted(divisions, key=lambda division: len(division.sizes))


def _cells(division: Division, pooled: str, errors: Replicates) -> dict[str, str]:
    low, high = min(division.sizes), max(division.sizes)
    roads = division.roads
    cells = {
        "clients": str(len(division.sizes)),
        "cells of a client": f"{low}" if low == high else f"{low} to {high}",
        **({"roads cut, %": f"{100 * roads['cut'] / roads['roads']:.0f}"} if roads else {}),
        "alone, against pooled, %": str(errors.relative_difference(division.alone, pooled)),
    }
    for method, name in division.federated.items():
        share = _closed(division, name, pooled, errors)
        cells |= {
            f"{method}, against alone, %": str(errors.relative_difference(name, division.alone)),
            f"{method}, against pooled, %": str(errors.relative_difference(name, pooled)),
            f"{method}, gap closed, %": "-" if share is None else str(share),
        }
    return cells


def _closed(division: Division, name: str, pooled: str, errors: Replicates) -> Estimate | None:
    """Return the share of the gap that a method closes, in per cent; None without a gap."""
    gap = errors.difference(division.alone, pooled)
    if not gap.low > 0:
        return None
    of = errors.pooled
    closed = 100 * (of[division.alone] - of[name]) / (of[division.alone] - of[pooled])
    return errors.vary(closed, division.alone, name, pooled).estimate(errors.level)


def _sentence(
    method: str, divisions: Sequence[Division], pooled: str, errors: Replicates, data: str,
    title: str,
) -> str:  # fmt: skip
    """Say in one sentence what a method closes, by number of clients."""
    closed, none = [], []
    for division in divisions:
        if name := division.federated.get(method):
            share = _closed(division, name, pooled, errors)
            number = str(len(division.sizes))
            if share is None:
                none.append(number)
            else:
                value, _, interval = str(share).partition(" ")
                closed.append(f"{value} % {interval} with {number} clients".replace("  ", " "))
    text = f"On {data}, **{method}** "
    if closed:
        text += (
            f"closes the gap in {title} between training alone and training on pooled data by "
            f"{', '.join(closed)}"
        )
    if none:
        text += "; " if closed else "has no gap to close: "
        text += f"with {_listed(none)} clients, alone cannot be told apart from pooled"
    return f"{text}."


def _listed(words: Sequence[str]) -> str:
    """Return words with commas and an "and".

    >>> _listed(["4", "8", "16"])
    '4, 8 and 16'
    """
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last

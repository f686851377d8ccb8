"""Comparison of finished image runs, on the terminal and in files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import pandas as pd

from data_prep.base.errors import InputError, choose
from experiments.images.comparison_table import basis, claims, compared_masks, comparison_rows
from stforecast.bench.run_groups import group_runs
from stforecast.bench.statistics.estimate import with_ends
from stforecast.bench.tables import latex, markdown, plain, write_comparison
from vision.comparison import Comparison, Row, compare, rows_of
from vision.results import ImageRun


def compare_images(
    folders: Sequence[Path], reference: str | None, out: Path | None, *, as_json: bool = False
) -> None:
    """Print a table with intervals, and what it shows, for each image set and scenario.

    Args:
        folders: folders that hold finished image runs.
        reference: row that the others are compared with; by default the best of each table.
        out: folder for the tables as files; None writes none.
        as_json: whether to print all numbers as JSON instead.

    Raises:
        InputError: if no table has the reference, or runs were tested on different images.
    """
    found = comparisons(ImageRun.find(folders), reference)
    if as_json:
        click.echo(_numbers(found).to_json(orient="records", indent=2))
    for name, comparison in {} if as_json else found.items():
        table = plain(comparison_rows(comparison))
        said = [claim.replace("**", "") for claim in claims(comparison, name)]
        click.echo("\n\n".join([name, table, *said, basis(comparison)]) + "\n")
    if out is not None:
        _write(out, found)
        click.echo(f"comparison.md, .csv and .tex in {out}", err=as_json)


def comparisons(runs: Sequence[ImageRun], reference: str | None = None) -> dict[str, Comparison]:
    """Compare image runs, those of each image set and scenario by themselves.

    Args:
        runs: finished runs.
        reference: row that the others are compared with; by default the best of each.

    Raises:
        InputError: if no table has the reference, or runs were tested on different images.
    """
    found = {}
    for name, rows in rows_by_data(runs, reference).items():
        own = reference if reference in {row.name for row in rows} else None
        try:
            found[name] = compare(rows, compared_masks(rows), own)
        except InputError as e:
            raise InputError(f"{name}: ", e) from e
    return found


def rows_by_data(runs: Sequence[ImageRun], reference: str | None = None) -> dict[str, list[Row]]:
    """Return the rows of each image set and scenario.

    Raises:
        InputError: if none of them is the reference.
    """
    parts: dict[str, list[ImageRun]] = {}
    for run in runs:
        parts.setdefault(run.data_name, []).append(run)
    found = {name: rows_of(group_runs(some)) for name, some in parts.items()}
    known = {row.name for rows in found.values() for row in rows}
    if reference is not None and reference not in known:
        raise choose("reference", reference, known)
    return found


def _write(out: Path, found: dict[str, Comparison]) -> None:
    """Write the tables as Markdown, LaTeX and CSV."""
    page, tables = ["# Comparison"], []
    for name, comparison in found.items():
        rows = comparison_rows(comparison)
        page += [f"## {name}", markdown(rows), *claims(comparison, name), basis(comparison)]
        tables += [f"% {name}\n{latex(rows)}"]
    write_comparison(out, page, tables, _numbers(found))


def _numbers(found: dict[str, Comparison]) -> pd.DataFrame:
    """Return every number, one row for each table, choice of classes and row."""
    rows = []
    for name, comparison in found.items():
        for mask, lines in comparison.lines.items():
            for line in lines:
                estimates = {"accuracy": line.accuracy, "points_above_reference": line.points}
                facts = {
                    "data": name, "choosing from": mask, "method": line.name,
                    "runs": len(line.row.group.runs), "reference": comparison.reference,
                }  # fmt: skip
                rows.append({**facts, **with_ends(estimates)})
    return pd.DataFrame(rows)

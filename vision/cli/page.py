"""Sections of a page on image runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from data_prep.base.errors import some
from stforecast.bench.curves import label_places
from stforecast.bench.drawing import png_address
from stforecast.bench.run_groups import ALL, select
from stforecast.report.section import Chart, Picture, Section, evenly, looks
from stforecast.report.tables import DataSheet, Table, runs_sheet
from vision.cli.compare import compared, compared_masks
from vision.cli.tables import STAGES_NOTE, accuracy_notes, accuracy_rows, kept_rows, stages_in_turn
from vision.comparison import ModelRow, shares_by_client
from vision.evaluation import MASKS
from vision.plots.curves import accuracies
from vision.plots.partition import PARTS, partition, stream
from vision.results import ImageRun
from vision.streams.measures import known


def image_section(name: str, rows: Sequence[ModelRow], reference: str | None) -> Section:
    """Gather what a page shows of runs on one image set and scenario."""
    rows = sorted(rows, key=lambda row: row.accuracy, reverse=True)
    found = compared(rows, name, reference)
    title = "Leaderboard, the highest accuracy first"
    tables = [Table(title, found.rows, found.basis)] if found.rows else []
    notes = ["mean over clients of the accuracy on their test images", *accuracy_notes(rows)]
    tables.append(Table("Accuracies in %, floats and seconds", accuracy_rows(rows), notes))
    in_turn = all(stages_in_turn(run) for row in rows for run in row.group.runs)
    if in_turn:
        tables.append(
            Table("Accuracy and forgetting after each stage", kept_rows(rows), [STAGES_NOTE])
        )
    groups = list({row.group.name: row.group for row in rows}.values())
    first = groups[0].runs[0]
    place = label_places((row.name, row.group.runs[0].method) for row in rows)
    charts = {
        "methods": looks({row.name: place[row.name] for row in rows}),
        "plots": [vars(chart) for chart in _charts(rows, in_turn=in_turn) if chart.lines],
    }
    return Section(
        name,
        found.plain_claims,
        tables,
        charts,
        picture=_division(first),
        data=DataSheet(_facts(first)),
        runs=runs_sheet(groups),
    )


def _charts(rows: Sequence[ModelRow], *, in_turn: bool) -> list[Chart]:
    """Return the charts, whose lines are means over seeds."""
    shared = compared_masks(rows)
    every, accuracy = shared[0], "test accuracy, %"
    charts = [
        Chart(f"Accuracy by round, choosing from {mask}.", "round", accuracy, _by_round(rows, mask))
        for mask in (*MASKS, *shared[1:])
    ]
    if in_turn:
        title = f"Accuracy after each stage on the stages so far, choosing from {every}."
        after = ([known(run.stages(), row.view, every) for run in row.group.runs] for row in rows)
        by_stage = _lines(100 * pd.concat(tables, axis=1).mean(axis=1) for tables in after)
        charts.append(Chart(title, "stage", accuracy, by_stage))
    sent = "megabytes sent and received by all clients"
    against = (
        f"Accuracy against the data that all clients sent and received, choosing from {every}."
    )
    shares = f"Distribution of the accuracies over clients after the last round, from {every}."
    classes = f"Accuracy by class after the last round, choosing from {every}."
    of_clients = [
        {"method": i, "y": 100 * share.groupby("client").mean().to_numpy()}
        for i, share in enumerate(shares_by_client(row, every)["share"] for row in rows)
    ]
    return [
        *charts,
        Chart(against, sent, accuracy, _by_traffic(rows, every), log=True),
        Chart(shares, "test accuracy of a client, %", "share of clients", of_clients),
        Chart(classes, "class", accuracy, _by_class(rows, every)),
    ]


def _lines(means: Iterable[pd.Series]) -> list[dict[str, Any]]:
    """Return a line for each method, which goes through its values at the entries of the index."""
    return [{"method": i, "x": y.index.to_numpy(), "y": y.to_numpy()} for i, y in enumerate(means)]


def _by_round(rows: Sequence[ModelRow], mask: str) -> list[dict[str, Any]]:
    means = (accuracies(row.group.runs, row.view, mask).mean(axis=1) for row in rows)
    return _lines(mean.iloc[evenly(len(mean))] for mean in means)


def _by_traffic(rows: Sequence[ModelRow], mask: str) -> list[dict[str, Any]]:
    lines = []
    for line in _by_round(rows, mask):
        tables = [run.rounds().set_index("round") for run in rows[line["method"]].group.runs]
        sent = pd.concat([t["bytes_down"] + t["bytes_up"] for t in tables], axis=1).mean(axis=1)
        if sent.any():
            lines.append({**line, "x": sent.cumsum()[line["x"]].to_numpy() / 1e6})
    return lines


def _by_class(rows: Sequence[ModelRow], mask: str) -> list[dict[str, Any]]:
    lines = []
    for i, row in enumerate(rows):
        metrics = pd.concat([run.metrics() for run in row.group.runs])
        table = select(metrics, view=row.view, mask=mask, selection="last")
        own = table[table["class"] != ALL].groupby("class", sort=False)["accuracy"].mean()
        names = [name for name in row.group.runs[0].about["classes"] if name in own.index]
        lines.append({"method": i, "x": names, "y": 100 * own[names].to_numpy()})
    return lines


def _division(run: ImageRun) -> Picture:
    """Draw the images by client and class, or also by stage, of a run."""
    if "stages" in run.about:
        drawn, caption = stream([run]), "Training images by client, class and stage"
    else:
        drawn, caption = partition([run]), "Images by client and class"
    caption = f"{caption}, of {run.label}, first seed."
    return Picture("Images of the clients", png_address(drawn, 130), caption)


def _facts(run: ImageRun) -> dict[str, str]:
    about, table = run.about, run.partition()
    by_part = table.groupby(["part", "client"])["samples"].sum()
    sizes = {
        f"{words} images of a client": f"{by_part[part].min():,} to {by_part[part].max():,}"
        for part, words in PARTS.items()
    }
    several, size = len(about["domains"]) > 1, run.settings["size"]
    pixels = f" of {size} × {size} pixels" if size else ""
    return {
        "images": f"{about['images']:,}{pixels}",
        "source": about["source"],
        f"{len(about['classes'])} classes": some(about["classes"], 20),
        **({"domains": ", ".join(about["domains"])} if several else {}),
        "clients": str(about["clients"]),
        "partition": run.settings["partition"],
        **({"stages": str(about["stages"])} if "stages" in about else {}),
        **sizes,
    }

"""Summaries and tables of image runs: accuracies, forgetting and knowledge retention."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd

from data_prep.base.errors import some
from stforecast.bench import tables
from stforecast.bench.grid_file import Published
from stforecast.bench.run_groups import differing_settings, group_runs, select
from vision.cli.compare import compared, compared_masks
from vision.comparison import ModelRow, rows_of
from vision.evaluation import MASKS, column, last_stage
from vision.methods import METHODS
from vision.results import ImageRun
from vision.streams.measures import forgetting, known, spatial_retention, temporal_retention

STAGES_NOTE = (
    "task classes: a prediction chooses from the classes of the test image's task; forgetting: "
    "drop from the best accuracy on a former stage to the accuracy on it after the last stage; "
    "KR_t: share of the accuracy on the first stage that clients' own models retain; KR_s: "
    "accuracy of the shared model on the present stage, relative to clients' own models; "
    "all in %"
)


def stages_in_turn(run: ImageRun) -> bool:
    """Return whether the run had successive stages, whose knowledge may be forgotten."""
    return run.about.get("stages", 1) > 1 and run.settings["stage_order"] == "sequential"


def kept_rows(rows: Sequence[ModelRow]) -> list[dict[str, str]]:
    """Return the rows of the table of accuracy after each stage, forgetting and retention."""
    return [
        {"method": row.name, "choosing from": mask, **_row(row.group.runs, row.view, mask)}
        for row in rows
        for mask in compared_masks(rows)
    ]


def _row(runs: Sequence[ImageRun], view: str, mask: str) -> dict[str, str]:
    stages = [run.stages() for run in runs]
    local = runs[0].local_view
    after = np.mean([known(s, view, mask) for s in stages], axis=0)
    lost = [100 * float(forgetting(s, view, mask).mean()) for s in stages]
    if view == local or runs[0].judged(view) == "own":
        name, ratios = "KR_t", [temporal_retention(s, view, mask) for s in stages]
    else:
        name, ratios = "KR_s", [spatial_retention(s, view, local, mask) for s in stages]
    last = [100 * r.iloc[-1] for r in ratios if len(r)]
    found = {name: tables.spread(last, 2)} if last else {}
    return {
        "after each stage": " / ".join(f"{100 * a:.1f}" for a in after),
        "forgetting": tables.spread(lost, 2),
        **{n: found.get(n, "-") for n in ("KR_t", "KR_s")},
    }


SELECTIONS = {"last": "last round", "last ten": "last ten", "best": "best round"}
"""Headings of the selections in a table."""


def image_summary(run: ImageRun) -> str:
    """Summarise a finished run in a few lines."""
    judged = last_stage(run.rounds())[column(run.views[0], MASKS[0])].count()
    headings = {**SELECTIONS, "last ten": f"mean of last {min(10, judged)}"}
    rows = [
        {
            "model": view,
            "judged with": run.judged(view) or "-",
            "choosing from": mask,
            **{h: f"{100 * run.accuracy(s, view, mask):.2f} %" for s, h in headings.items()},
        }
        for view in run.views
        for mask in run.masks
    ]
    lines = [
        tables.for_terminal(rows),
        "the images of all clients were pooled in one place"
        if pools_images(run)
        else tables.traffic_sentence(run),
        "mean over clients of the accuracy on their test images; the best round is selected by the "
        "test accuracy itself",
        judged_note({run.judged(view) for view in run.views}),
        classes_left_out(run.partition(), run.about["classes"]),
        tables.privacy_sentence(run.about),
        f"run in {run.folder}",
    ]
    return "\n".join(filter(None, lines))


def classes_left_out(partition: pd.DataFrame, classes: Sequence[str]) -> str:
    """Name the classes whose training images no client has, as partitions may draw classes.

    >>> found = pd.DataFrame({"part": ["train", "test"], "class": ["cat", "dog"]})
    >>> classes_left_out(found, ["cat", "dog"])
    'classes without training images on any client: dog'
    """
    trained = set(partition.loc[partition["part"] == "train", "class"])
    rest = [name for name in classes if name not in trained]
    return f"classes without training images on any client: {some(rest)}" if rest else ""


def judged_note(found: Collection[str]) -> str:
    """Explain the values of the column "judged with" that a table has.

    >>> judged_note({"own"})
    "judged with own: each client's model after its local training"
    """
    notes = {
        "own": "own: each client's model after its local training",
        "averaged": "averaged: the average of the clients' models",
        "": "-: no part of this model is averaged",
    }
    return f"judged with {'; '.join(words for value, words in notes.items() if value in found)}"


def accuracy_tables(
    runs: Sequence[ImageRun],
    failures: Mapping[str, str],
    published: Published | None = None,
    reference: str | None = None,
) -> list[tables.Part]:
    """Tabulate results, one table per data set and scenario, one row per model.

    Runs that differ only in the seed share a row: mean ± standard deviation over seeds, in percent.
    """
    return tables.in_sections(
        runs,
        failures,
        lambda run: tuple(run.facts().values()),
        lambda some: _section(some, published, reference),
    )


def accuracy_rows(rows: Sequence[ModelRow]) -> list[dict[str, str]]:
    """Return the rows of the table of accuracies, floats and seconds of models on the same data."""
    masks = [*MASKS[1:], *compared_masks(rows)[1:]]
    return [
        {
            "method": tables.marked(row.name, pools=pools_images(run)),
            "judged with": run.judged(row.view) or "-",
            "runs": tables.number(len(row.group.runs), "d"),
            **_measured(row.group.runs, row.view, masks),
            "floats a round, up / down": "-"
            if pools_images(run)
            else tables.floats_up_and_down(run),
            "seconds": tables.number(
                float(np.mean([run.about["seconds"] for run in row.group.runs])), ".0f"
            ),
        }
        for row in rows
        for run in row.group.runs[:1]
    ]


def accuracy_notes(rows: Sequence[ModelRow]) -> list[str]:
    """Explain the columns of the table of accuracies."""
    runs = [run for row in rows for run in row.group.runs]
    judged = {run.judged(view) for run in runs for view in run.views}
    notes = [
        f"{judged_note(judged)}; own classes: a prediction chooses from the classes of the "
        "client's training images; best: the best round by the test accuracy itself, as in papers; "
        "by domain: all clients' test images together, after the last round"
    ]
    if any(map(pools_images, runs)):
        notes.append(f"{tables.POOLED_MARK} trained on the images of all clients together")
    return notes


def _section(
    runs: Sequence[ImageRun], published: Published | None, reference: str | None
) -> list[tables.Part]:
    """Return heading and table of runs on the same data."""
    scenario = runs[0].facts()["scenario"]
    groups = group_runs(runs)
    rows = rows_of(groups)
    names = [row.name for row in rows]
    printed = published.columns(scenario, names) if published else {}
    table = [
        {**row, **{heading: numbers[i] for heading, numbers in printed.items()}}
        for i, row in enumerate(accuracy_rows(rows))
    ]
    about = runs[0].about
    name = runs[0].data_name
    columns, *pooled = accuracy_notes(rows)
    parts: list[tables.Part] = [
        f"**{name}**: {about['clients']} clients, {len(about['classes'])} classes, "
        f"{about['settings']['model']}; mean over clients of the test accuracy in %",
        *([f"Rows differ in: {', '.join(d)}."] if (d := differing_settings(runs)) else []),
        table,
        columns,
        *([published.footnote] if published and printed else []),
        *pooled,
        *filter(None, (tables.left_out(g.name, [r.rounds() for r in g.runs]) for g in groups)),
    ]
    if all(stages_in_turn(r) for r in runs):
        parts += [kept_rows(rows), STAGES_NOTE]
    if len(rows) > 1:
        parts += compared(rows, name, reference).parts()
    return parts


def pools_images(run: ImageRun) -> bool:
    """Return whether the run's method pooled the images of all clients."""
    return bool(getattr(METHODS.get(run.method), "pooled", False))


def _measured(runs: Sequence[ImageRun], view: str, masks: Sequence[str]) -> dict[str, str]:
    accuracies = {
        heading: tables.spread([100 * r.accuracy(s, view) for r in runs], 2)
        for s, heading in SELECTIONS.items()
    }
    masked = {
        f"{mask}, last": tables.spread([100 * r.accuracy("last", view, mask) for r in runs], 2)
        for mask in masks
    }
    found: dict[str, str] = {**accuracies, **masked}
    if len(domains := runs[0].about["domains"]) > 1:
        metrics = select(pd.concat([r.metrics() for r in runs]), view=view, mask=MASKS[0])
        for name in domains:
            own = 100 * select(metrics, domain=name)["accuracy"]
            found[name] = tables.spread(own.tolist(), 2) if len(own) else "-"
    return found

"""Tables of image runs, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tabulate import tabulate

from experiments.images.kept import kept, stages_in_turn
from experiments.numbers import spread
from experiments.published import Published
from experiments.traffic import floats, left_out
from vision.config import NO_DIFFERENCE
from vision.evaluation import MASKS, TASK
from vision.results import ImageRun

SELECTIONS = {"last": "last round", "last ten": "last ten", "best": "best round"}
"""Selections in a table, and their headings."""


def summary(run: ImageRun) -> str:
    """A finished run in a few lines."""
    rows = [
        {
            "model": view,
            "choosing from": mask,
            **{h: f"{100 * run.accuracy(s, view, mask):.2f} %" for s, h in SELECTIONS.items()},
        }
        for view in run.views
        for mask in run.masks
    ]
    sent, received = (floats(run.rounds(), way) for way in ("up", "down"))
    lines = [
        tabulate(rows, headers="keys", tablefmt="simple", disable_numparse=True),
        f"in a round a client sends {sent:,.0f} floats and receives {received:,.0f}",
        "mean over clients of the accuracy on their test images; the best round is chosen by the "
        "test itself",
        f"run in {run.folder}",
    ]
    return "\n".join(lines)


def results_table(
    runs: Sequence[ImageRun], failures: Mapping[str, str], published: Published | None = None
) -> str:
    """Markdown: a table for each data set and scenario, in it a row for each method and model.

    Runs of one label make a row: mean ± standard deviation over seeds, in percent.

    Args:
        runs: finished runs.
        failures: name of each failed run to its error.
        published: numbers of a paper, for columns of their own.
    """
    sections: dict[tuple[str, str], list[ImageRun]] = {}
    for run in runs:
        key = (run.about["data"], run.about.get("scenario", ""))
        sections.setdefault(key, []).append(run)
    parts = [_section(members, *key, published) for key, members in sections.items()]
    if failures:
        parts.append("Failed:\n\n" + "\n".join(f"- {name}: {e}" for name, e in failures.items()))
    return "\n\n".join(parts)


def _section(
    runs: Sequence[ImageRun], data: str, scenario: str, published: Published | None
) -> str:
    """Heading and table of runs on the same data."""
    variants: dict[str, list[ImageRun]] = {}
    for run in runs:
        variants.setdefault(run.label, []).append(run)
    rows = [(label, view, rs) for label, rs in variants.items() for view in rs[0].views]
    names = [rs[0].name_of(view) for _, view, rs in rows]
    printed = published.columns(scenario, names) if published else {}
    masks = [m for m in (*MASKS[1:], TASK) if all(m in r.masks for r in runs)]
    table = [
        {
            "method": names[i],
            "runs": str(len(rs)),
            **_measured(rs, view, masks),
            **_cost(rs),
            **{heading: numbers[i] for heading, numbers in printed.items()},
        }
        for i, (_, view, rs) in enumerate(rows)
    ]
    about = runs[0].about
    name = f"{data}, {scenario}" if scenario else data
    lines = [
        f"**{name}**: {about['clients']} clients, {len(about['classes'])} classes, "
        f"{about['settings']['model']}; mean over clients of the test accuracy in %",
        *([f"Rows differ in: {', '.join(d)}."] if (d := _differing(runs)) else []),
        tabulate(table, headers="keys", tablefmt="github", disable_numparse=True),
        "own classes: a prediction chooses from the classes of the client's training images; best: "
        "chosen by the test itself, as papers do; by domain: all clients' test images together, "
        "last round",
        *([published.footnote] if published and printed else []),
        *filter(
            None, (left_out(label, [r.rounds() for r in rs]) for label, rs in variants.items())
        ),
    ]
    if all(stages_in_turn(r) for r in runs):
        named = [(name, view, rs) for name, (_, view, rs) in zip(names, rows, strict=True)]
        lines.append(kept(named, [MASKS[0], *masks[1:]]))
    return "\n\n".join(lines)


def _measured(runs: Sequence[ImageRun], view: str, masks: Sequence[str]) -> dict[str, str]:
    accuracies = {
        heading: spread([100 * r.accuracy(s, view) for r in runs], 2)
        for s, heading in SELECTIONS.items()
    }
    masked = {
        f"{mask}, last": spread([100 * r.accuracy("last", view, mask) for r in runs], 2)
        for mask in masks
    }
    return {**accuracies, **masked, **_by_domain(runs, view)}


def _cost(runs: Sequence[ImageRun]) -> dict[str, str]:
    traffic = " / ".join(f"{floats(runs[0].rounds(), way):,.0f}" for way in ("up", "down"))
    seconds = f"{np.mean([r.about['seconds'] for r in runs]):.0f}"
    return {"floats up / down": traffic, "seconds": seconds}


def _by_domain(runs: Sequence[ImageRun], view: str) -> dict[str, str]:
    """A column for each domain, where there are several."""
    domains = runs[0].about["domains"]
    if len(domains) == 1:
        return {}
    columns: dict[str, str] = {}
    tables = [r.metrics() for r in runs]
    for domain in domains:
        found = []
        for t in tables:
            own = t[(t["view"] == view) & (t["mask"] == MASKS[0]) & (t["domain"] == domain)]
            found += [100 * float(a) for a in own["accuracy"]]
        columns[domain] = spread(found, 2) if found else "-"
    return columns


def _differing(runs: Sequence[ImageRun]) -> list[str]:
    """Settings that several of the runs have and that are not the same for all of those."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for name, value in run.about["settings"].items():
            values.setdefault(name, set()).add(str(value))
    return [n for n, v in values.items() if len(v) > 1 and n not in NO_DIFFERENCE | {"method"}]

"""Tables of results, for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from tabulate import tabulate

from data_prep.text import counted
from experiments.horizons import horizon_table
from experiments.interval_table import interval_table, nominal_coverage, refit_notes
from experiments.numbers import spread
from experiments.published import Published
from experiments.ranks import rank_variants
from experiments.traffic import floats, left_out
from stforecast.baselines import BASELINES
from stforecast.methods import METHODS
from stforecast.results import Run
from stforecast.variants import NO_DIFFERENCE, Variant, as_variants

SHOWN = {"mse": "MSE", "mae": "MAE", "raw_mae": "MAE, data units"}
"""Errors in a summary, and their headings."""

SAME_TEST = ("split", "horizon", "scale")
"""Settings that errors must share, with data and service, to stand in one table."""

POOLED_MARK = "†"


def summary(run: Run) -> str:
    """A finished run in a few lines."""
    rounds = run.rounds()
    models = {"best": ""}
    if len(rounds):
        numbers = {"best": _best_round(rounds), "last": len(rounds)}
        selections = sorted(run.metrics()["selection"].unique())
        models = {s: _model_name(s, numbers) for s in selections}
    rows = [
        {"model": name, **{heading: f"{run.score(m, s):.4f}" for m, heading in SHOWN.items()}}
        for s, name in models.items()
    ]
    lines = [tabulate(rows, headers="keys", tablefmt="simple", disable_numparse=True)]
    if _pooled(run):
        lines.append("the records of all cells were brought to one place")
    elif len(rounds):
        sent, received = (floats(rounds, way) for way in ("up", "down"))
        lines.append(f"in a round a client sends {sent:,.0f} floats and receives {received:,.0f}")
    if note := _window_note(run):
        lines.append(note)
    if guarantee := run.about.get("privacy"):
        lines.append(
            f"({guarantee['epsilon']:.3g}, {guarantee['delta']:g})-differential privacy of "
            f"{guarantee['of']} over {guarantee['uploads']} uploads"
        )
    if math.isfinite(held := run.score("coverage", run.about["settings"].get("select", "best"))):
        asked = nominal_coverage(run)
        lines.append(f"{asked:.0%} intervals hold {held:.1%} of the test part")
    lines += refit_notes([(variant, "") for variant in as_variants([run])])
    lines.append(f"errors on the test part, of z-scores unless said otherwise; run in {run.folder}")
    return "\n".join(lines)


def _window_note(run: Run) -> str:
    """What a day and the like came to in the data's steps, where settings give times."""
    asked, used = run.about["settings"], run.about.get("window", {})
    steps = [f"{name} {value}" for name, value in used.items() if asked.get(name) != value]
    return f"in steps of {run.about['step_minutes']:g} minutes: {', '.join(steps)}" if steps else ""


def _model_name(selection: str, rounds: Mapping[str, int]) -> str:
    """A selection with the number of its round.

    >>> _model_name("best (global)", {"best": 7, "last": 9})
    'best round, 7 (global)'
    """
    which, _, view = selection.partition(" ")
    return f"{which} round, {rounds[which]} {view}".strip()


def _best_round(rounds: pd.DataFrame) -> int:
    """Number of the round of the lowest validation loss; the last one without a validation part."""
    losses = rounds["validation_loss"].to_numpy()
    return int(np.nanargmin(losses)) + 1 if np.isfinite(losses).any() else len(rounds)


def results_table(
    runs: Sequence[Run], failures: Mapping[str, str], published: Published | None = None
) -> str:
    """Markdown: a table for each test part, in it a row for each variant of a method.

    Runs that differ in nothing but their seed make a row: mean ± standard deviation over seeds.
    Above a table stand the settings that its rows share and the names of those in which they
    differ.

    Args:
        runs: finished runs.
        failures: name of each failed run to its error.
        published: numbers of a paper, for columns of their own.
    """
    sections: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        settings = [str(run.about["settings"][name]) for name in SAME_TEST]
        key = (run.about["data"], run.about["service"], *settings)
        sections.setdefault(key, []).append(run)
    parts = [_section(members, published) for members in sections.values()]
    if failures:
        parts.append("Failed:\n\n" + "\n".join(f"- {name}: {e}" for name, e in failures.items()))
    return "\n\n".join(parts)


def _section(runs: Sequence[Run], published: Published | None) -> str:
    """Heading and table of runs with the same test part."""
    rows = [(row, view) for row in as_variants(runs) for view in _views(row.runs[0])]
    about, settings = runs[0].about, runs[0].about["settings"]
    lines = [
        f"**{Path(about['data']).stem}, {about['service']}**: {about['clients']} cells, test part "
        f"of `{settings['split']}`, {counted(settings['horizon'], 'step')} ahead, z-scores by "
        f"{settings['scale']}; model of the lowest validation loss unless said otherwise"
    ]
    if differing := _differing([row.runs[0] for row, _ in rows]):
        lines.append(f"Rows differ in: {', '.join(differing)}.")
    ranking = rank_variants(rows)
    labels = ["" if view else row.base for row, view in rows]
    printed = published.columns(about["service"], labels) if published else {}
    table = [
        {
            **_name(row, view),
            **({"rank": f"{ranking.ranks[i]:.2f}"} if ranking else {}),
            **_measured(row, view),
            **{heading: numbers[i] for heading, numbers in printed.items()},
        }
        for i, (row, view) in enumerate(rows)
    ]
    lines.append(tabulate(table, headers="keys", tablefmt="github", disable_numparse=True))
    names = [line["method"] for line in table]
    further = horizon_table(rows, names, published), interval_table(rows, names)
    lines += filter(None, further)
    notes = [str(ranking)] if ranking else []
    if published and (printed or about["service"] in published.horizons):
        notes.append(published.footnote)
    notes += [f"{POOLED_MARK} trained on the data of all cells together"] * any(map(_pooled, runs))
    of_variants = [row for row, view in rows if not view]
    notes += [note for row in of_variants for note in (_privacy(row), _missing(row)) if note]
    return "\n\n".join(lines + notes + refit_notes(rows))


def _privacy(variant: Variant) -> str:
    """What the row's uploads guarantee, where that was accounted for."""
    found = [run.about["privacy"] for run in variant.runs if "privacy" in run.about]
    if not found:
        return ""
    worst = max(found, key=lambda guarantee: guarantee["epsilon"])
    return (
        f"{variant.name}: (ε = {worst['epsilon']:.3g}, δ = {worst['delta']:.0e}) differential "
        f"privacy of {worst['of']} over {worst['uploads']} uploads"
    )


def _missing(variant: Variant) -> str:
    return left_out(variant.name, [run.rounds() for run in variant.runs])


def _differing(runs: Sequence[Run]) -> list[str]:
    """Settings that several of the runs have and that are not the same for all of those."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for name, value in run.about["settings"].items():
            values.setdefault(name, set()).add(str(value))
    return [n for n, v in values.items() if len(v) > 1 and n not in NO_DIFFERENCE | {"method"}]


def _views(run: Run) -> list[str]:
    """The method's models as selections name them: "" and, for some methods, "(global)"."""
    return sorted({s.partition(" ")[2] for s in run.metrics()["selection"]})


def _name(variant: Variant, view: str) -> dict[str, str]:
    name = f"{variant.name} {view}".strip()
    marked = f"{name} {POOLED_MARK}" if _pooled(variant.runs[0]) else name
    return {"method": marked, "runs": str(len(variant.runs))}


def _measured(variant: Variant, view: str) -> dict[str, str]:
    runs = variant.runs
    best, last = f"best {view}".strip(), f"last {view}".strip()
    rounds = runs[0].rounds()
    traffic = (f"{floats(rounds, way):,.0f}" for way in ("up", "down"))
    return {
        "MSE": spread([r.score("mse", best) for r in runs]),
        "MSE, last round": spread([r.score("mse", last) for r in runs]),
        "MAE": spread([r.score("mae", best) for r in runs]),
        "MAE, data units": spread([r.score("raw_mae", best) for r in runs]),
        "floats up / down": " / ".join(traffic) if len(rounds) and not _pooled(runs[0]) else "-",
        "seconds": f"{np.mean([r.about['seconds'] for r in runs]):.1f}",
    }


def _pooled(run: Run) -> bool:
    """Whether the run's method had the records of all cells in one place."""
    return bool(getattr({**METHODS, **BASELINES}.get(run.method), "pooled", False))

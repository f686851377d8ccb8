"""Summaries and tables of the results of forecasts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from data_prep.registry import join
from data_prep.text import counted
from experiments.forecasts.horizons import horizon_table
from experiments.forecasts.interval_table import interval_table, nominal_coverage, refit_notes
from experiments.forecasts.ranks import rank_groups
from stforecast.baselines import BASELINES
from stforecast.bench.numbers import spread
from stforecast.bench.published import Published
from stforecast.bench.run_groups import RunGroup, differing_settings, group_runs
from stforecast.bench.tables import (
    floats_up_and_down,
    markdown,
    mean_seconds,
    plain,
    sections,
    traffic_sentence,
)
from stforecast.bench.traffic import left_out
from stforecast.methods import METHODS
from stforecast.metrics import METRICS
from stforecast.results import ForecastRun

SHOWN = {"mse": "MSE", "mae": "MAE", "raw_mae": "MAE, data units"}
"""Headings of the errors in every summary."""

SAME_TEST = ("split", "horizon", "scale")
"""Settings that errors in one table must share, besides data and service."""

POOLED_MARK = "†"


def summary(run: ForecastRun) -> str:
    """Summarise a finished run in a few lines."""
    rounds = run.rounds()
    models = {"best": ""}
    if len(rounds):
        numbers = {"best": _best_round(rounds), "last": len(rounds)}
        selections = sorted(run.metrics()["selection"].unique())
        models = {s: _model_name(s, numbers) for s in selections}
    shown = {**SHOWN, **_further_columns([run])}
    rows = [
        {"model": name, **{heading: f"{run.score(m, s):.4f}" for m, heading in shown.items()}}
        for s, name in models.items()
    ]
    lines = [plain(rows)]
    if _pooled(run):
        lines.append("the records of all cells were pooled in one place")
    elif len(rounds):
        lines.append(traffic_sentence(run))
    if note := _window_note(run):
        lines.append(note)
    if guarantee := run.about.get("privacy"):
        lines.append(
            f"({guarantee['epsilon']:.3g}, {guarantee['delta']:g})-differential privacy of "
            f"{guarantee['of']} over {guarantee['uploads']} uploads"
        )
    if math.isfinite(held := run.score("coverage", run.settings.get("select", "best"))):
        asked = nominal_coverage(run)
        lines.append(f"{asked:.0%} intervals hold {held:.1%} of the test part")
    lines += refit_notes([(group, "") for group in group_runs([run])])
    lines.append(f"errors on the test part, of z-scores unless said otherwise; run in {run.folder}")
    return "\n".join(lines)


def _window_note(run: ForecastRun) -> str:
    """Return the settings given as times, such as a day, in steps of the data."""
    asked, used = run.settings, run.about.get("window", {})
    steps = [f"{name} {value}" for name, value in used.items() if asked.get(name) != value]
    return f"in steps of {run.about['step_minutes']:g} minutes: {', '.join(steps)}" if steps else ""


def _model_name(selection: str, rounds: Mapping[str, int]) -> str:
    """Return a selection with the number of its round.

    >>> _model_name("best (global)", {"best": 7, "last": 9})
    'best round, 7 (global)'
    """
    which, _, view = selection.partition(" ")
    return f"{which} round, {rounds[which]} {view}".strip()


def _best_round(rounds: pd.DataFrame) -> int:
    """Return the round of the lowest validation loss, or the last one without a validation part."""
    losses = rounds["validation_loss"].to_numpy()
    return int(np.nanargmin(losses)) + 1 if np.isfinite(losses).any() else len(rounds)


def results_table(
    runs: Sequence[ForecastRun], failures: Mapping[str, str], published: Published | None = None
) -> str:
    """Tabulate results as Markdown, one table per test part and one row per group of runs.

    Runs that differ only in the seed share a row: mean ± standard deviation over seeds. The heading
    of a table gives the settings that its rows share and the names of those in which they differ.

    Args:
        runs: finished runs.
        failures: error of each failed run, by name.
        published: numbers of a paper, shown in separate columns.
    """
    return sections(runs, failures, _test_part, lambda some: _section(some, published))


def _test_part(run: ForecastRun) -> tuple[str, ...]:
    """Return the facts that errors in one table must share."""
    settings = [str(run.settings[name]) for name in SAME_TEST]
    return (run.about["data"], run.about["service"], *settings)


def _section(runs: Sequence[ForecastRun], published: Published | None) -> str:
    """Return heading and table of runs with the same test part."""
    rows = [(row, view) for row in group_runs(runs) for view in _views(row.runs[0])]
    about, settings = runs[0].about, runs[0].settings
    lines = [
        f"**{Path(about['data']).stem}, {about['service']}**: {about['clients']} cells, test part "
        f"of `{settings['split']}`, {counted(settings['horizon'], 'step')} ahead, z-scores by "
        f"{settings['scale']}; model of the lowest validation loss unless said otherwise"
    ]
    if differing := differing_settings([row.runs[0] for row, _ in rows]):
        lines.append(f"Rows differ in: {', '.join(differing)}.")
    ranking = rank_groups(rows)
    labels = ["" if view else row.base for row, view in rows]
    printed = published.columns(about["service"], labels) if published else {}
    further = _further_columns(runs)
    table = [
        {
            **_name(row, view),
            **({"rank": f"{ranking.ranks[i]:.2f}"} if ranking else {}),
            **_measured(row, view, further),
            **{heading: numbers[i] for heading, numbers in printed.items()},
        }
        for i, (row, view) in enumerate(rows)
    ]
    lines.append(markdown(table))
    names = [line["method"] for line in table]
    lines += filter(None, [horizon_table(rows, names, published), interval_table(rows, names)])
    notes = [str(ranking)] if ranking else []
    if published and (printed or about["service"] in published.horizons):
        notes.append(published.footnote)
    notes += [f"{POOLED_MARK} trained on the data of all cells together"] * any(map(_pooled, runs))
    groups = [row for row, view in rows if not view]
    notes += [note for row in groups for note in (_privacy(row), _missing(row)) if note]
    return "\n\n".join(lines + notes + refit_notes(rows))


def _privacy(group: RunGroup[ForecastRun]) -> str:
    """Return the privacy guarantee of the row's uploads, if it was computed."""
    found = [run.about["privacy"] for run in group.runs if "privacy" in run.about]
    if not found:
        return ""
    worst = max(found, key=lambda guarantee: guarantee["epsilon"])
    return (
        f"{group.name}: (ε = {worst['epsilon']:.3g}, δ = {worst['delta']:.0e}) differential "
        f"privacy of {worst['of']} over {worst['uploads']} uploads"
    )


def _missing(group: RunGroup[ForecastRun]) -> str:
    return left_out(group.name, [run.rounds() for run in group.runs])


def _views(run: ForecastRun) -> list[str]:
    """Return the method's views: "" and, for some methods, "(global)"."""
    return sorted({s.partition(" ")[2] for s in run.metrics()["selection"]})


def _name(group: RunGroup[ForecastRun], view: str) -> dict[str, str]:
    name = f"{group.name} {view}".strip()
    marked = f"{name} {POOLED_MARK}" if _pooled(group.runs[0]) else name
    return {"method": marked, "runs": str(len(group.runs))}


def _further_columns(runs: Sequence[ForecastRun]) -> dict[str, str]:
    """Return further metrics with a heading that any of the runs has."""
    headed = [metric for metric in METRICS.values() if metric.heading]
    if not headed:
        return {}
    known = set().union(*(run.metrics()["metric"] for run in runs))
    names = {m.raw_name if m.relative else m.name: m.heading for m in headed}
    return {name: heading for name, heading in names.items() if name in known}


def _measured(
    group: RunGroup[ForecastRun], view: str, further: Mapping[str, str]
) -> dict[str, str]:
    runs = group.runs
    best, last = f"best {view}".strip(), f"last {view}".strip()
    sends = len(runs[0].rounds()) and not _pooled(runs[0])
    return {
        "MSE": spread([r.score("mse", best) for r in runs]),
        "MSE, last round": spread([r.score("mse", last) for r in runs]),
        "MAE": spread([r.score("mae", best) for r in runs]),
        "MAE, data units": spread([r.score("raw_mae", best) for r in runs]),
        **{heading: spread([r.score(m, best) for r in runs]) for m, heading in further.items()},
        "floats up / down": floats_up_and_down(runs[0]) if sends else "-",
        "seconds": mean_seconds(runs, 1),
    }


def _pooled(run: ForecastRun) -> bool:
    """Return whether the run's method pooled the records of all cells."""
    return bool(getattr(join(METHODS, BASELINES).get(run.method), "pooled", False))

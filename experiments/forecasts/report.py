"""Tables of the results of forecasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from data_prep.base.text import counted
from experiments.forecasts.horizons import horizon_table
from experiments.forecasts.interval_table import interval_table, refit_notes
from experiments.forecasts.peak_table import peak_table
from experiments.forecasts.worth_table import in_one_client, worth_table
from stforecast.baselines import BASELINES
from stforecast.bench.published import Published
from stforecast.bench.run_groups import RunGroup, differing_settings, group_runs
from stforecast.bench.tables import (
    POOLED_MARK,
    floats_up_and_down,
    left_out,
    markdown,
    sections,
    spread,
)
from stforecast.comparison.errors import SEASONAL
from stforecast.comparison.leaderboard import leaderboard
from stforecast.comparison.rows import Row, by_seed, folds_of
from stforecast.comparison.table import basis, comparison_rows, conclusions, legend, rank_groups
from stforecast.metrics import METRICS
from stforecast.results import ForecastRun, units_of

SAME_TEST = ("horizon", "scale")
"""Settings that errors in one table must share, besides data, service and split."""

FURTHER = "Further models"
"""Title of the table of methods' other models, such as the global one."""


def results_table(
    runs: Sequence[ForecastRun],
    failures: Mapping[str, str],
    published: Published | None = None,
    reference: str | None = None,
) -> str:
    """Tabulate results as Markdown, one table per test part and one row per group of runs.

    Runs that differ only in the seed share a row: mean ± standard deviation over seeds. The heading
    of a table gives the settings that its rows share and the names of those in which they differ.
    Below it, the methods are compared with intervals (`stforecast.comparison.leaderboard`).

    Args:
        runs: finished runs.
        failures: error of each failed run, by name.
        published: numbers of a paper, shown in separate columns.
        reference: row that the others are compared with; by default that of the lowest error.
    """
    return sections(runs, failures, _test_part, lambda some: _section(some, published, reference))


def _test_part(run: ForecastRun) -> tuple[str, ...]:
    """Return the facts that errors in one table must share."""
    settings = [str(run.settings[name]) for name in SAME_TEST]
    facts = {"split": str(run.settings["split"]), **run.facts()}
    return (run.about["data"], *facts.values(), *settings)


def _section(
    runs: Sequence[ForecastRun], published: Published | None, reference: str | None
) -> str:
    """Return heading and tables of runs with the same test part."""
    rows = [Row(group, view) for group in group_runs(runs) for view in _views(group.runs[0])]
    lines = [_heading(runs[0]), *_fold_dates(rows)]
    differing = differing_settings([row.first for row in rows])
    if differing := [name for name in differing if name != "split"]:
        lines.append(f"Rows differ in: {', '.join(differing)}.")
    lines.append(_errors_table(rows, runs, published))
    names = [_name(row) for row in rows]
    further = (
        horizon_table(rows, names, published), interval_table(rows, names), peak_table(rows, names),
    )  # fmt: skip
    lines += [*filter(None, further), *_comparisons(rows, reference)]
    about = runs[0].about
    notes = []
    if published and about["service"] in {*published.services, *published.horizons}:
        notes.append(published.footnote)
    notes += [f"{POOLED_MARK} trained on the data of all cells together"] * any(
        map(is_pooled, runs)
    )
    groups = [row.group for row in rows if not row.view]
    notes += [note for group in groups for note in (_privacy(group), _missing(group)) if note]
    return "\n\n".join(lines + notes + refit_notes(rows))


def _heading(run: ForecastRun) -> str:
    """Describe data and test part of a section."""
    about, settings = run.about, run.settings
    parts = about.get("parts") or {}
    test = parts.get("test")
    if run.fold:
        when = about["backtest"]
    else:
        when = f"test part of `{settings['split']}`"
        when += f" ({_span(test)})" if test else ""
    return (
        f"**{Path(about['data']).stem}, {about['service']}**: {about['clients']} cells, {when}, "
        f"{counted(settings['horizon'], 'step')} ahead, z-scores by {settings['scale']}; model of "
        "the lowest validation loss unless said otherwise"
    )


def _span(part: Mapping[str, str]) -> str:
    """Format the first and last target of a part, without seconds."""
    return " to ".join(time.removesuffix(":00") for time in (part["first"], part["last"]))


def _fold_dates(rows: Sequence[Row]) -> list[str]:
    """Tabulate the dates of a backtest's folds: first and last target of each part."""
    runs = folds_of(run for row in rows for run in row.group.runs)
    folds = {n: run.about.get("parts") or {} for n, run in runs.items() if n}
    dates = [
        {"fold": str(n), **{part: _span(span) for part, span in parts.items() if span}}
        for n, parts in folds.items()
    ]
    return [markdown(dates)] if any(folds.values()) else []


def _errors_table(
    rows: Sequence[Row], runs: Sequence[ForecastRun], published: Published | None
) -> str:
    """Tabulate errors, floats and seconds, one row per model, mean over its runs."""
    labels = ["" if row.view else row.group.base for row in rows]
    service = runs[0].about["service"]
    printed = published.columns(service, labels) if published else {}
    further = further_columns(runs)
    return markdown(
        [
            {
                "method": _name(row),
                "runs": str(len(row.group.runs)),
                **_measured(row, further),
                **{heading: numbers[i] for heading, numbers in printed.items()},
            }
            for i, row in enumerate(rows)
        ]
    )


def _comparisons(rows: Sequence[Row], reference: str | None) -> list[str]:
    """Compare the main methods, then ablations and further models in tables of their own."""
    tables: dict[str, list[Row]] = {}
    for row in rows:
        tables.setdefault(FURTHER if row.view else row.first.table, []).append(row)
    main = tables.pop("", [])
    if not main or len(rows) < 2:
        return []
    folds = folds_of(run for row in main for run in row.group.runs)
    if not any(row.complete_seeds(folds) for row in main):
        return ["Not compared: no method has a run of every fold."]
    if reference not in (SEASONAL, *(row.name for row in main)):
        reference = None  # Its runs have failed.
    board = leaderboard(main, reference=reference)
    ranking = rank_groups([row for row in main if row.name not in board.errors.incomplete])
    lines = [markdown(comparison_rows(board, ranking))]
    data = Path(main[0].first.about["data"]).stem
    lines += [*conclusions(board, data), *worth_table(main, board, data)]
    lines += [str(ranking)] if ranking else []
    lines += [*basis(board), *legend([board])]
    compared = [row for row in main if row.name == board.reference]
    for title, members in sorted(tables.items(), key=lambda table: table[0] == FURTHER):
        own = leaderboard([*compared, *members], reference=board.reference)
        lines += [f"{title}:", markdown(comparison_rows(own))]
    return lines


def _privacy(group: RunGroup[ForecastRun]) -> str:
    """Return the privacy guarantee of the row's uploads, if it was computed."""
    found = [run.about["privacy"] for run in group.runs if "privacy" in run.about]
    if not found:
        return ""
    worst = max(found, key=lambda guarantee: guarantee["epsilon"])
    return (
        f"{group.name}: differential privacy of {worst['of']} over {worst['uploads']} uploads, "
        f"with ε = {worst['epsilon']:.3g} and δ = {worst['delta']:.0e}"
    )


def _missing(group: RunGroup[ForecastRun]) -> str:
    return left_out(group.name, [run.rounds() for run in group.runs])


def _views(run: ForecastRun) -> list[str]:
    """Return the method's views: "" and, for some methods, "(global)"."""
    return sorted({s.partition(" ")[2] for s in run.metrics()["selection"]})


def _name(row: Row) -> str:
    return f"{row.name} {POOLED_MARK}" if is_pooled(row.first) else row.name


def further_columns(runs: Sequence[ForecastRun]) -> dict[str, str]:
    """Return further metrics with a heading that any of the runs has."""
    headed = [metric for metric in METRICS.values() if metric.heading]
    if not headed:
        return {}
    known = set().union(*(run.metrics()["metric"] for run in runs))
    names = {m.raw_name if m.relative else m.name: m.heading for m in headed}
    return {name: heading for name, heading in names.items() if name in known}


def _measured(row: Row, further: Mapping[str, str]) -> dict[str, str]:
    """Return the means over a row's runs."""
    first = row.first
    sends = len(first.rounds()) and not is_pooled(first)
    shown = {"mse": "MSE", "mae": "MAE", "raw_mae": f"MAE, {units_of(first)}", "mase": "MASE"}
    return {
        "MSE": _score(row, "mse"),
        "MSE, last round": _score(row, "mse", "last"),
        **{heading: _score(row, metric) for metric, heading in {**shown, **further}.items()},
        "floats a round, up / down": floats_up_and_down(first) if sends else "-",
        "train s": f"{row.mean_of('train_seconds'):.1f}",
        "predict s": f"{row.mean_of('predict_seconds'):.2f}",
    }


def _score(row: Row, metric: str, which: str = "best") -> str:
    """Return mean and deviation over seeds of an error, itself the mean over a backtest's folds."""
    selection = row.selection(which)
    return spread(
        [
            float(np.mean([run.score(metric, selection) for run in runs]))
            for runs in by_seed(row.group.runs)
        ]
    )


def is_pooled(run: ForecastRun) -> bool:
    """Return whether the run's method pooled the records of all cells."""
    return in_one_client(run) or bool(getattr(BASELINES.get(run.method), "pooled", False))

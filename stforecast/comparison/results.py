"""Tables of the results of forecasts: errors, comparisons, and the gain from federation.

A summary of a single run in a few lines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from data_prep.base.errors import counted, counted_span, four_digits, in_minutes
from stforecast.bench import tables
from stforecast.bench.grid_file import Published
from stforecast.bench.run_groups import differing_settings, group_runs, grouped, pooled
from stforecast.bench.statistics.bootstrap import Replicates
from stforecast.bench.statistics.estimate import Estimate
from stforecast.comparison.errors import SEASONAL, bias_in_words, naive_name
from stforecast.comparison.further_tables import (
    horizon_table,
    interval_table,
    nominal_coverage,
    peak_table,
    refit_notes,
)
from stforecast.comparison.leaderboard import Leaderboard, claims, leaderboard
from stforecast.comparison.names import error_title
from stforecast.comparison.rows import (
    FURTHER_MODELS,
    Row,
    by_seed,
    folds_of,
    in_one_client,
    is_pooled,
)
from stforecast.comparison.table import basis, client_errors, comparison_rows, legend, rank_clients
from stforecast.forecasting.results import ForecastRun, data_of, units_of
from stforecast.metrics import METRICS


class Division(NamedTuple):
    """Rows of one division of the cells into clients, by the setting `clients`.

    `sizes` are of all runs, `bits` the mean divergences of the clients by what differs. `federated`
    has the name of the row of each federated method, `closed` the share of the gap between training
    alone and pooled data that it closes, in per cent; None without a gap.
    """

    clients: str
    n_clients: int
    sizes: list[int]
    bits: dict[str, float]
    roads: dict[str, float]
    alone: str
    federated: dict[str, str]
    closed: dict[str, Estimate | None]


def worth_table(rows: Sequence[Row], board: Leaderboard) -> list[tables.Part]:
    """Tabulate how much of the gap between local training and pooled data federation closes.

    A sentence for each federated method follows the table. It is empty unless rows of several
    divisions into clients are there, one of them pooled.
    """
    known = [row for row in rows if row.name in board.replicates.pooled]
    pooled = next((row.name for row in known if in_one_client(row.first)), None)
    if pooled is None:
        return []
    divisions = _divisions(known, pooled, board.replicates)
    if len(divisions) < 2:
        return []
    title = error_title(board.metric)
    named = list(dict.fromkeys(name for division in divisions for name in division.bits))
    table = [_cells(division, named, pooled, board.replicates) for division in divisions]
    methods = list(dict.fromkeys(m for d in divisions for m in d.federated))
    said = [_sentence(m, divisions, board.task, title) for m in methods]
    about = (
        f"The gain from federation: its {title} compared with local training and with training on "
        "pooled data. gap closed: 100 % if the error equals training on pooled data, 0 % if it "
        "equals local training; not given if these two do not differ significantly."
    )
    if named:
        about += (
            " profiles and levels, bits: Jensen-Shannon divergence of the clients' mean weeks, and "
            "of the levels of their cells, from the mean of all clients."
        )
    return [about, table, *said]


def _divisions(rows: Sequence[Row], pooled: str, errors: Replicates) -> list[Division]:
    """Return the divisions into clients that have a row of local training, from few to many."""
    from stforecast.methods import METHODS  # imports torch

    apart = [r for r in rows if r.first.method in METHODS and not in_one_client(r.first)]
    divisions = []
    by_setting = grouped(apart, lambda row: str(row.first.settings.get("clients", "cell")))
    for setting, some in by_setting.items():
        names = {row.first.method: row.name for row in some}
        about = some[0].first.about
        if "solo" in names and len(names) > 1:  # Local training.
            alone, of = names.pop("solo"), errors.pooled
            closed: dict[str, Estimate | None] = dict.fromkeys(names)
            if errors.difference(alone, pooled).low > 0:
                for method, name in names.items():
                    share = 100 * (of[alone] - of[name]) / (of[alone] - of[pooled])
                    varied = errors.vary(share, alone, name, pooled)
                    closed[method] = varied.estimate(errors.level)
            runs = [run.about for row in some for run in row.group.runs]
            sizes = [n for run in runs for n in run.get("cells_of_clients", {"": 1}).values()]
            bits = [run["heterogeneity_bits"] for run in runs if "heterogeneity_bits" in run]
            means = {str(name): float(mean) for name, mean in pd.DataFrame(bits).mean().items()}
            number = len(about.get("cells_of_clients", ())) or about["clients"]
            parts = about.get("roads", {}), alone, names, closed
            divisions.append(Division(setting, number, sizes, means, *parts))
    return sorted(divisions, key=lambda d: (d.n_clients, sum(d.bits.values())))


def _cells(
    division: Division, named: Sequence[str], pooled: str, errors: Replicates
) -> dict[str, str]:
    low, high = min(division.sizes), max(division.sizes)
    roads = division.roads
    cells: dict[str, str] = {"clients": tables.number(division.n_clients, "d")}
    if named:
        cells["division"] = Path(division.clients).name  # That of a file.
    cells["cells of a client"] = f"{low}" if low == high else f"{low} to {high}"
    for name in named:
        cells[f"{name}, bits"] = tables.number(division.bits.get(name, math.nan), ".2g")
    if roads:
        cells["roads cut, %"] = tables.number(100 * roads["cut"] / roads["roads"], ".0f")
    above = errors.relative_difference(division.alone, pooled)
    cells["alone, against pooled, %"] = above.cell()
    for method, name in division.federated.items():
        share = division.closed[method]
        cells |= {
            f"{method}, against alone, %": errors.relative_difference(name, division.alone).cell(),
            f"{method}, against pooled, %": errors.relative_difference(name, pooled).cell(),
            f"{method}, gap closed, %": share.cell() if share else "-",
        }
    return cells


def _sentence(method: str, divisions: Sequence[Division], task: str, title: str) -> str:
    """Say in one sentence what a method closes, by number of clients."""
    own = [division for division in divisions if method in division.closed]
    differ = len({division.n_clients for division in own}) == len(own)
    shares = [(str(d.n_clients) if differ else d.clients, d.closed[method]) for d in own]
    clients = " clients" if differ else ""
    closed = [f"{share.told('%')} with {n}{clients}" for n, share in shares if share]
    none = [n for n, share in shares if share is None]
    text = f"On {task}, **{method}** "
    if closed:
        text += (
            f"closes the gap in {title} between local training and training on pooled data by "
            f"{', '.join(closed)}"
        )
    if none:
        *first, last = none
        listed = f"{', '.join(first)} and {last}" if first else last
        both = f"local and pooled training with {listed}{clients}"
        text += f"; with {listed}{clients}, the two" if closed else f"has no gap to close: {both}"
        text += " do not differ significantly"
    return f"{text}."


def results_parts(
    runs: Sequence[ForecastRun],
    failures: Mapping[str, str],
    published: Published | None = None,
    reference: str | None = None,
) -> list[tables.Part]:
    """Tabulate results, one table per test part and one row per group of runs.

    Runs that differ only in the seed share a row: mean ± standard deviation over seeds. The heading
    of a table gives the settings that its rows share and the names of those in which they differ.
    Below it, the methods are compared with intervals (`stforecast.comparison.leaderboard`).
    """
    spiky = {data_of(run.about) for run in runs if run.about.get("outliers")}

    def key(run: ForecastRun) -> tuple[str, ...]:
        data, settings = data_of(run.about), run.settings
        facts = {"split": str(settings["split"]), **run.facts()}
        # Spikes that are kept are targets, and make the scale of z-scores larger.
        kept = data in spiky and settings.get("outliers") == "keep"
        shared = settings["horizon"], settings["scale"], kept
        return (str(data.resolve()), *facts.values(), *map(str, shared))

    return tables.in_sections(
        runs, failures, key, lambda some: _section(some, published, reference)
    )


def _section(
    runs: Sequence[ForecastRun], published: Published | None, reference: str | None
) -> list[tables.Part]:
    rows = []
    for group in group_runs(runs):
        selections = group.runs[0].metrics()["selection"].unique()
        # The method's views: "" and, for some methods, "(global)".
        rows += [Row(group, view) for view in sorted({s.partition(" ")[2] for s in selections})]
    parts = [_heading(runs[0]), *_fold_dates(rows)]
    differing = differing_settings([row.first for row in rows])
    if differing := [name for name in differing if name != "split"]:
        parts.append(f"Rows differ in: {', '.join(differing)}.")
    parts.append(_errors_table(rows, runs, published))
    parts += horizon_table(rows, published)
    parts += interval_table(rows)
    parts += peak_table(rows)
    parts += _comparisons(rows, reference)
    about = runs[0].about
    notes = []
    if published and about["service"] in {*published.services, *published.horizons}:
        notes.append(published.footnote)
    if any(map(is_pooled, runs)):
        notes.append(f"{tables.POOLED_MARK} trained on the data of all cells together")
    for group in (row.group for row in rows if not row.view):
        left_out = tables.left_out(group.name, [run.rounds() for run in group.runs])
        private = [run.about for run in group.runs if run.about.get("privacy")]
        if private:
            worst = max(private, key=lambda about: about["privacy"]["epsilon"])
            notes.append(f"{group.name}: {tables.privacy_sentence(worst)}")
        notes += [left_out] if left_out else []
    return [*parts, *notes, *refit_notes(rows)]


def _heading(run: ForecastRun) -> str:
    about, settings = run.about, run.settings
    parts = about.get("parts") or {}
    test = parts.get("test")
    kept = ", outliers kept" if settings.get("outliers") == "keep" else ""
    if run.fold:
        when = about["backtest"]
    else:
        when = f"test part of `{settings['split']}`"
        when += f" ({_span(test)})" if test else ""
    return (
        f"**{Path(about['data']).stem}, {about['service']}**: {about['clients']} cells, {when}, "
        f"{counted(settings['horizon'], 'step')} ahead, z-scores by {settings['scale']}{kept}; "
        "each row is of the model that `predict` uses, after the best or the last round"
    )


def _span(part: Mapping[str, str]) -> str:
    """Format the first and last target of a part, without seconds."""
    return " to ".join(time.removesuffix(":00") for time in (part["first"], part["last"]))


def _fold_dates(rows: Sequence[Row]) -> list[tables.Part]:
    """Tabulate the dates of a backtest's folds: first and last target of each part."""
    runs = folds_of(run for row in rows for run in row.group.runs)
    folds = {n: run.about.get("parts") or {} for n, run in runs.items() if n}
    dates = [
        {"fold": str(n), **{part: _span(span) for part, span in parts.items() if span}}
        for n, parts in folds.items()
    ]
    return [dates] if any(folds.values()) else []


def _errors_table(
    rows: Sequence[Row], runs: Sequence[ForecastRun], published: Published | None
) -> list[dict[str, str]]:
    labels = ["" if row.view else row.group.base for row in rows]
    service = runs[0].about["service"]
    printed = published.columns(service, labels) if published else {}
    further = further_columns(runs)
    body = []
    for i, row in enumerate(rows):
        first = row.first
        sends = len(first.rounds()) and not is_pooled(first)
        shown = {"mae": "MAE", "raw_mae": f"MAE, {units_of(first)}", "mase": "MASE", **further}
        cells = {
            "method": row.marked_name,
            "runs": tables.number(len(row.group.runs), "d"),
            "MSE": _score(row, "mse"),
            "round": first.kept_round if len(first.rounds()) else "-",
            **{heading: _score(row, metric) for metric, heading in shown.items()},
            "floats a round, up / down": tables.floats_up_and_down(first) if sends else "-",
            "train s": tables.number(row.mean_of("train_seconds"), ".1f"),
            "predict s": tables.number(row.mean_of("predict_seconds"), ".2f"),
        }
        body.append(cells | {heading: numbers[i] for heading, numbers in printed.items()})
    return body


def _comparisons(rows: Sequence[Row], reference: str | None) -> list[tables.Part]:
    """Compare the main methods, then ablations and further models in tables of their own."""
    by_title = grouped(rows, lambda row: row.table)
    main = by_title.pop("", [])
    if not main or len(rows) < 2:
        return []
    folds = folds_of(run for row in main for run in row.group.runs)
    if not any(row.complete_seeds(folds) for row in main):
        return ["Not compared: no method has a run of every fold."]
    if reference not in (SEASONAL, *(row.name for row in main)):
        reference = None  # Its runs have failed.
    board = leaderboard(main, reference=reference, task=Path(main[0].first.about["data"]).stem)
    complete = [row for row in main if row.name not in board.errors.incomplete]
    ranking = rank_clients(client_errors(complete, "mse"), "mse")
    parts: list[tables.Part] = [comparison_rows(board, ranking)]
    parts += [*claims(board), *worth_table(main, board)]
    parts += [str(ranking)] if ranking else []
    parts += [*basis(board), *legend([board])]
    compared = [row for row in main if row.name == board.reference]
    for title, members in sorted(by_title.items(), key=lambda table: table[0] == FURTHER_MODELS):
        own = leaderboard([*compared, *members], reference=board.reference)
        parts += [f"{title}:", comparison_rows(own)]
    return parts


def further_columns(runs: Sequence[ForecastRun]) -> dict[str, str]:
    """Return further metrics with a heading that any of the runs has."""
    headed = [metric for metric in METRICS.values() if metric.heading]
    if not headed:
        return {}
    known = set().union(*(run.metrics()["metric"] for run in runs))
    names = {m.raw_name if m.relative else m.name: m.heading for m in headed}
    return {name: heading for name, heading in names.items() if name in known}


def _score(row: Row, metric: str) -> str:
    """Return mean and deviation over seeds of an error, itself the mean over a backtest's folds."""
    return tables.spread(
        [
            float(np.mean([run.score(metric, row.selection) for run in runs]))
            for runs in by_seed(row.group.runs)
        ]
    )


def summary(run: ForecastRun) -> str:
    """Summarise a finished run in a few lines."""
    rounds, whole = run.rounds(), pooled(run.metrics())
    models = _models(run, rounds, whole)
    shown = {"mse": "MSE", "mae": "MAE", "raw_mae": f"MAE, {units_of(run)}", "mase": "MASE"}
    shown |= further_columns([run])
    errors = [
        {"model": name, **{h: f"{run.score(m, s, table=whole):.4f}" for m, h in shown.items()}}
        for s, name in models.items()
    ]
    lines = [tables.for_terminal(errors)]
    if is_pooled(run):
        lines.append("the records of all cells were pooled in one place")
    elif len(rounds):
        lines.append(tables.traffic_sentence(run))
    if sizes := run.about.get("cells_of_clients", {}).values():
        span = counted_span(min(sizes), max(sizes), "cell")
        lines.append(f"{counted(len(sizes), 'client')} of {span}; errors of each in clients.csv")
    if note := _window_note(run):
        lines.append(note)
    if chosen := run.about.get("chosen"):
        texts = (f"{n} {v:.4g}" if isinstance(v, float) else f"{n} {v}" for n, v in chosen.items())
        lines.append(f"chosen on the validation part: {', '.join(texts)}")
    if guarantee := tables.privacy_sentence(run.about):
        lines.append(guarantee)
    if len(models) > 1:
        lines.append(f"`predict` and the next lines use the {run.kept_round} round's model")
    rows = [Row(group) for group in group_runs([run])]
    (line,) = leaderboard(rows, "raw_mae").lines
    if line.skill is not None:
        found = line.skill.times(100).told("%")
        with run.open_forecasts() as forecasts:
            lines.append(f"skill against the {naive_name(forecasts)}, in MAE: {found}")
    bias, mae, wape = (run.score(f"raw_{n}", table=whole) for n in ("bias", "mae", "wape"))
    if math.isfinite(share := bias * wape / mae if mae else bias):
        lines.append(f"of the forecasts, {bias_in_words(share)}")
    if of_intervals := interval_line(run, whole):
        lines.append(of_intervals)
    lines += refit_notes(rows)
    lines.append(
        "MASE: error divided by the error of the value one day before, in the training part"
    )
    lines.append(f"errors on the test part, of z-scores unless said otherwise; run in {run.folder}")
    return "\n".join(lines)


def interval_line(run: ForecastRun, errors: pd.DataFrame | None = None) -> str:
    """Return the coverage, mean width and furthest bounds of intervals; "" without any.

    The errors are those of all cells and steps together, if they were read already.
    """
    if not math.isfinite(held := run.score("coverage", table=errors)):
        return ""
    width = run.score("raw_width", table=errors)
    with run.open_forecasts() as found:  # One variable at a time, as there may be many cells.
        ends = found["lower"].min(), found["upper"].max(), found["y"].min(), found["y"].max()
        lowest, highest, least, most = (four_digits(float(end)) for end in ends)
    return (
        f"{nominal_coverage(run):.0%} intervals contain {held:.1%} of the test values; mean width "
        f"{four_digits(width)}, bounds from {lowest} to {highest}, values from {least} to {most}"
    )


def _window_note(run: ForecastRun) -> str:
    """Return the settings given as times, such as a day, in steps of the data."""
    asked, used = run.settings, run.about.get("window", {})
    names = (name for name, value in used.items() if asked.get(name) != value)
    steps = [f"{name} {used[name]}" for name in names if name != "target"]
    if not steps:
        return ""
    step = in_minutes(pd.Timedelta(minutes=float(run.about["step_minutes"])))
    return f"in steps of {step}: {', '.join(steps)}"


def _models(run: ForecastRun, rounds: pd.DataFrame, errors: pd.DataFrame) -> dict[str, str]:
    """Return the names of the models whose errors are shown, by selection."""
    if not len(rounds):
        return {run.selection(): run.method}
    losses, last = rounds["validation_loss"].to_numpy(), len(rounds)
    best = int(np.nanargmin(losses)) + 1 if np.isfinite(losses).any() else last
    names = {"best": f"best round, {best}", "last": f"last round, {last}"}
    if best == last:  # Only the model that is kept was refitted.
        names = {run.kept_round: f"best and last round, {best}"}
    models = {}
    for selection in sorted(errors["selection"].unique()):
        which, _, view = selection.partition(" ")
        if which in names:
            models[selection] = f"{names[which]} {view}".strip()
    return models

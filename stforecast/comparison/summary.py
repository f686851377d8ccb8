"""Summary of a run in a few lines."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from data_prep.base.errors import counted, in_minutes
from stforecast.bench.run_groups import group_runs, pooled
from stforecast.bench.tables import for_terminal, privacy_sentence, traffic_sentence
from stforecast.comparison.errors import bias_in_words, naive_name
from stforecast.comparison.further_tables import nominal_coverage, refit_notes
from stforecast.comparison.leaderboard import leaderboard
from stforecast.comparison.results import further_columns
from stforecast.comparison.rows import Row, is_pooled
from stforecast.forecasting.results import ForecastRun, units_of


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
    lines = [for_terminal(errors)]
    if is_pooled(run):
        lines.append("the records of all cells were pooled in one place")
    elif len(rounds):
        lines.append(traffic_sentence(run))
    if sizes := run.about.get("cells_of_clients", {}).values():
        span = f"{min(sizes)} to {max(sizes)} cells" if len(sizes) > 1 else f"{max(sizes)} cells"
        lines.append(f"{counted(len(sizes), 'client')} of {span}; errors of each in clients.csv")
    if note := _window_note(run):
        lines.append(note)
    if chosen := run.about.get("chosen"):
        texts = (f"{n} {v:.4g}" if isinstance(v, float) else f"{n} {v}" for n, v in chosen.items())
        lines.append(f"chosen on the validation part: {', '.join(texts)}")
    if guarantee := privacy_sentence(run.about):
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
        bounds = f"{float(found['lower'].min()):,.4g} to {float(found['upper'].max()):,.4g}"
        values = f"{float(found['y'].min()):,.4g} to {float(found['y'].max()):,.4g}"
    return (
        f"{nominal_coverage(run):.0%} intervals contain {held:.1%} of the test values; mean width "
        f"{width:,.4g}, bounds from {bounds}, values from {values}"
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
    best, last = _best_round(rounds), len(rounds)
    names = {"best": f"best round, {best}", "last": f"last round, {last}"}
    if best == last:  # Only the model that is kept was refitted.
        names = {run.kept_round: f"best and last round, {best}"}
    models = {}
    for selection in sorted(errors["selection"].unique()):
        which, _, view = selection.partition(" ")
        if which in names:
            models[selection] = f"{names[which]} {view}".strip()
    return models


def _best_round(rounds: pd.DataFrame) -> int:
    """Return the round of the lowest validation loss, or the last one without a validation part."""
    losses = rounds["validation_loss"].to_numpy()
    return int(np.nanargmin(losses)) + 1 if np.isfinite(losses).any() else len(rounds)

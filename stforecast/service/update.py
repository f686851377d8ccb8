"""One update of a service: new records in, yesterday's forecast scored, the next one out.

The rule that decides on the model is `decide`; its settings are `UpdateOptions`. A challenger is
trained without the trial's days, and replaces the model in service only if it wins on them. Then it
learns these days, too.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, Words
from data_prep.preparation import open_again
from stforecast.bench.statistics.estimate import ErrorSums, Estimate, with_ends
from stforecast.comparison.errors import model_errors
from stforecast.comparison.leaderboard import neighbours, resample
from stforecast.data.cubes import open_cube
from stforecast.data.scaling import Scaler
from stforecast.data.series import Series
from stforecast.federated.runs import model_files
from stforecast.federated.runs.run_folder import write_csv, writing
from stforecast.forecasting.evaluate import Evaluation, forecasts_dataset, seasonal_scale
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.model import FittedModel
from stforecast.forecasting.results import MODEL, ForecastRun
from stforecast.forecasting.tables import Interval, long_table
from stforecast.forecasting.update import (
    LEAST_HORIZONS,
    How,
    begin_of,
    in_trial,
    trained_until,
    trial_steps,
)
from stforecast.service import folder
from stforecast.service.delivery import Doubt, doubt_of_times, doubt_of_values, end_in_utc
from stforecast.service.expected import thinned_forecasts
from stforecast.service.folder import ServiceState
from stforecast.service.held import hold, release
from stforecast.service.judge import judge
from stforecast.service.records import Change, append
from stforecast.service.scores import issue, rounded, scores, since, with_values
from stforecast.service.settings import ServiceSettings, UpdateOptions

log = logging.getLogger(__name__)

UNCHANGED, WENT_ON, KEPT, HELD = "unchanged", "went on", "challenger lost", "held back"
CALIBRATED: How = "calibrated"
FURTHER: How = "trained further"
ANEW: How = "trained anew"

MOST_FACTOR = 1e12
"""Largest factor between units; the smallest is its reciprocal."""

MOST_HORIZONS = 10
"""Most steps by which a forecast is longer because a delivery is held back, in horizons."""

CODES = {WENT_ON: 0, UNCHANGED: 10, CALIBRATED: 11, FURTHER: 12, ANEW: 13, KEPT: 14, HELD: 15}
"""Exit code of each thing that an update may have done with the model."""


@dataclass(frozen=True, eq=False)
class Updated:
    """What an update did.

    Attributes:
        action: one of `CODES`.
        about: the same and its reasons, numbers and files, as one line of JSON has them.
        forecast: `(time, cell)` table of the coming span.
        interval: its bounds; None without.
    """

    action: str
    about: dict[str, Any]
    forecast: pd.DataFrame
    interval: Interval | None


@dataclass(frozen=True)
class Decision:
    """Whether to train a challenger, and why.

    Attributes:
        how: `FURTHER` or `ANEW`; None for no challenger.
        calibrate: whether the bounds are calibrated again, unless a challenger replaces the model.
        reason: why, in words.
        most_days: most last days on which the challenger must win.
    """

    how: How | None
    calibrate: bool
    reason: str
    most_days: float = math.inf


def decide(state: ServiceState, options: UpdateOptions, nominal: float) -> Decision:
    """Decide what to do with the model, from the forecasts of the last days.

    1. Nothing, before `check_days` have been forecast.
    2. Train anew after `anew_days`, or where errors grew and training further has lost already.
    3. Train further after `further_days`, or where errors grew by more than `error_tolerance`.
       Neither before `rest_days` are over. Where errors grew, the trial is of `check_days` at most,
       so that a challenger learns more of what has changed.
    4. Calibrate where coverage is off by more than `coverage_tolerance`.

    Args:
        state: the state, with the new records.
        options: the settings.
        nominal: nominal coverage of the bounds; 0 without.
    """
    day = pd.Timedelta(days=1)
    begun = state.issued.indexes["time"].min()
    if pd.isna(begun) or (state.end - begun) / day < options.check_days - 1:
        return Decision(None, False, f"less than {options.check_days:g} days were forecast")
    found = scores(since(state.issued, state.end, options.check_days))
    trained, anew = (
        (state.end - pd.Timestamp(t)) / day for t in (state.standing.trained, state.standing.anew)
    )
    grown = float(found.mase) / state.standing.promised - 1
    worse = grown > options.error_tolerance
    off = float(found.coverage) - nominal
    calibrate = bool(nominal) and abs(off) > options.coverage_tolerance
    errors = f"MASE {found.mase:.3g}, {grown:+.0%} against the trial"
    covered = f"coverage {found.coverage:.1%} of {nominal:.0%}"
    if trained >= options.rest_days:
        if options.anew_days and anew >= options.anew_days:
            return Decision(ANEW, calibrate, f"{anew:.0f} days since it was trained anew")
        if worse:
            how = ANEW if state.standing.lost else FURTHER
            return Decision(how, calibrate, errors, options.check_days)
        if options.further_days and trained >= options.further_days:
            return Decision(FURTHER, calibrate, f"{trained:.0f} days since the last training")
    return Decision(None, calibrate, covered if calibrate else f"{errors}; {covered}")


def update(
    run: str | os.PathLike[str],
    new: str | os.PathLike[str],
    events: str | os.PathLike[str] | None = None,
    *,
    accept: bool = False,
    times: float = 1.0,
    now: pd.Timestamp | None = None,
) -> Updated:
    """Take new records into a run's service, score, forecast, and renew the model where it pays.

    A delivery that is doubtful as a whole is kept aside, and the service goes on without it, see
    `stforecast.service.delivery`. A second process waits for nobody: it is refused. A killed update
    changes nothing.

    Args:
        run: folder of a finished run.
        new: records, opened as the run's own were prepared; or a cube.
        events: table of the events known for these times, for a model that reads events.
        accept: whether to take the records however doubtful they are.
        times: what to multiply the values of the records by, to have them in the run's unit.
        now: the present in UTC, after which no record can be; by default the machine's.

    Raises:
        InputError: if the records cannot be used, or the run's data or state are damaged.
    """
    began, path = time.perf_counter(), Path(run)
    _check_factor(times)
    present = pd.Timestamp.now("UTC") if now is None else now.tz_localize("UTC")
    opened, settings = folder.open_run(path), ServiceSettings.read(path)
    with folder.update_lock(path):
        forecaster, before = Forecaster.load(path, mapped=True), folder.last_state(path)
        model = forecaster.model_
        state = folder.read_state(before) if before else folder.state_before(opened)
        records = open_again(new, model.preparation) if model.preparation else open_cube(new)
        given = records
        if times != 1.0 and state.service in records:
            values = records[state.service]
            records = records.assign({state.service: (values * times).assign_attrs(values.attrs)})
        delivery, of_run = (records, str(new), present), thinned_forecasts(opened)
        if not accept and (doubt := _doubt(forecaster, of_run, state, delivery, events)):
            doubt, delivery = dataclasses.replace(doubt, times=times), (given, str(new), present)
            return _held_back(forecaster, path, state, doubt, delivery, events)
        history, change = append(state.history, records, str(new))
        for note in change.notes:
            log.warning("%s: %s", new, note)
        if before and not change.steps and not change.changed:
            release(path, str(new), records)
            about = {"action": UNCHANGED, "reason": "no new and no corrected value"}
            return Updated(UNCHANGED, {**about, "notes": list(change.notes)}, pd.DataFrame(), None)
        history = history.isel(time=slice(-_kept_steps(forecaster, opened, settings.update), None))
        state, broken = _with_history(of_run, model.scaler, settings, state, history)
        for note in broken:
            log.warning("%s: %s", path, note)
        change = dataclasses.replace(change, notes=(*change.notes, *broken))
        updated, renewed = _renewed(forecaster, state, change, settings.update, events)
        _write(path, renewed, state, updated, linked=renewed is forecaster)
        release(path, str(new), records)
    seconds = round(time.perf_counter() - began, 2)
    file = path / folder.IN_SERVICE.parent / "forecast.csv"
    return dataclasses.replace(
        updated, about={**updated.about, "file": str(file), "seconds": seconds}
    )


def _check_factor(times: float) -> None:
    """Refuse a factor that is none between units."""
    if not 1 / MOST_FACTOR <= times <= MOST_FACTOR:
        raise InputError(
            Words("{factor}", factor=times),
            f" is none that a unit has, expected {1 / MOST_FACTOR:g} to {MOST_FACTOR:g}; give one "
            "such as 0.001 for records in kB of a run in MB",
        )


def _with_history(
    of_run: xr.Dataset,
    scaler: Scaler,
    settings: ServiceSettings,
    state: ServiceState,
    history: xr.Dataset,
) -> tuple[ServiceState, list[str]]:
    """Return the state with new records, and what is said of broken counters."""
    # Its title is the name in messages, which would else be that of the first records.
    history = history.assign_attrs(title="records in service")
    state = dataclasses.replace(state, history=history, broken=None)
    judged = judge(of_run, state, settings.monitor, scaler)
    return dataclasses.replace(state, broken=judged.found.broken), judged.broken


def _write(
    path: Path, forecaster: Forecaster, state: ServiceState, updated: Updated, *, linked: bool
) -> None:
    """Write the next state; a model that is `linked` is the one before.

    That of the run is copied, as somebody may write over its files.
    """
    with writing(path, "give the same records again"), folder.next_state(path) as part:
        source = path / model_files.IN_SERVICE
        linked = linked and source.is_dir()
        if not (linked and model_files.link_model(source, part / "model", MODEL)):
            forecaster.save(part / "model")
        folder.write_state(state, part)
        write_csv(long_table(updated.forecast, updated.interval), part / "forecast.csv")


def _doubt(
    forecaster: Forecaster,
    of_run: xr.Dataset,
    state: ServiceState,
    delivery: tuple[xr.Dataset, str, pd.Timestamp],
    events: str | os.PathLike[str] | None,
) -> Doubt | None:
    """Return why records are not believed; None if they are."""
    records, name, present = delivery
    found = doubt_of_times(state.history, records, present)
    if found is not None:
        return found
    issued = state.issued
    if not issued.sizes["time"]:
        series = forecaster.read(state.history, events)
        issued = issue(issued, series, *forecaster.outlook(series))
    return doubt_of_values(state, records, name, issued, of_run)


def _held_back(
    forecaster: Forecaster,
    path: Path,
    state: ServiceState,
    doubt: Doubt,
    delivery: tuple[xr.Dataset, str, pd.Timestamp],
    events: str | os.PathLike[str] | None,
) -> Updated:
    """Keep a delivery aside, and forecast what follows it without it."""
    records, name, present = delivery
    held = hold(path, records, name, doubt, present)
    log.warning("%s", held)
    series = forecaster.read(state.believed, events)
    horizon, step = forecaster.config.window.horizon, forecaster.model_.step
    until = min(end_in_utc(records, step), present)
    missed = math.ceil((until - end_in_utc(state.history, step)) / step)
    steps = horizon + min(max(missed, 0), MOST_HORIZONS * horizon)
    table, interval = forecaster.outlook(series, steps)
    about = {
        "update": len(state.log) + 1, "until": str(begin_of(series, 1)), "steps": 0, "changed": 0,
        "action": HELD, "reason": doubt.reason,
    }  # fmt: skip
    state.log = pd.concat([state.log, pd.DataFrame([about])], ignore_index=True)
    done = Updated(HELD, about, table, interval)
    before = folder.last_state(path)
    times = before and (before / folder.STATE).stat()
    _write(path, forecaster, state, done, linked=True)
    if times:  # Metrics tell when records were taken last.
        written = path / folder.IN_SERVICE.parent / folder.STATE
        os.utime(written, ns=(times.st_atime_ns, times.st_mtime_ns))
    file = path / folder.IN_SERVICE.parent / "forecast.csv"
    further = {
        "kind": doubt.kind, "remedy": held.remedy, "kept": held.kept, "from": str(table.index[0]),
        "to": str(table.index[-1]), "cells": table.shape[1], "file": str(file),
    }  # fmt: skip
    return dataclasses.replace(done, about={**about, **further})


def _kept_steps(forecaster: Forecaster, run: ForecastRun, options: UpdateOptions) -> int:
    """Return the steps of records to keep."""
    model, parts = forecaster.model_, run.about["parts"]
    day = pd.Timedelta(days=1) / model.step
    trial = max(round(options.trial_days * day), LEAST_HORIZONS * model.config.window.horizon)
    if options.history_days:
        return max(round(options.history_days * day), trial + model.reach + round(7 * day))
    span = pd.Timestamp(parts["test"]["last"]) - pd.Timestamp(parts["training"]["first"])
    return round(span / model.step) + 1 + trial


def _renewed(
    forecaster: Forecaster,
    state: ServiceState,
    change: Change,
    options: UpdateOptions,
    events: str | os.PathLike[str] | None,
) -> tuple[Updated, Forecaster]:
    """Score, decide, renew and forecast; change the state."""
    history = state.believed
    series = forecaster.read(history, events)
    values = forecaster.model_.scaler.believed(series.values)
    believed = dataclasses.replace(series, values=values)
    state.issued = with_values(state.issued, believed)
    nominal = forecaster.config.coverage if forecaster.model_.calibration else 0.0
    decision = decide(state, options, nominal)
    found = rounded(scores(since(state.issued, state.end, 1.0)))
    done = _Renewal(forecaster, WENT_ON, decision.reason)
    if decision.how is not None:
        done = _challenged(forecaster, series, state, decision, options, events)
    if done.forecaster is forecaster and decision.calibrate:
        forecaster = forecaster.update(history, CALIBRATED, options.trial_days, events=events)
        action = CALIBRATED if done.action == WENT_ON else done.action
        done = dataclasses.replace(done, forecaster=forecaster, action=action)
    table, interval = done.forecaster.outlook(series)
    state.issued = issue(state.issued, believed, table, interval)
    about = {
        "update": len(state.log) + 1,
        "until": str(begin_of(series, 1)),
        "steps": change.steps,
        "changed": change.changed,
        **{f"day_{name}": value for name, value in found.items()},
        "action": done.action,
        "reason": done.reason,
        **with_ends({"against_champion": done.against}),
    }
    state.log = pd.concat([state.log, pd.DataFrame([about])], ignore_index=True)
    about |= {"from": str(table.index[0]), "to": str(table.index[-1]), "cells": table.shape[1]}
    about["notes"] = list(change.notes)
    return Updated(done.action, about, table, interval), done.forecaster


@dataclass(frozen=True)
class _Renewal:
    """What became of the model: the one in service, what happened, why, and by how much it won."""

    forecaster: Forecaster
    action: str
    reason: str
    against: Estimate | None = None


def _challenged(
    forecaster: Forecaster,
    series: Series,
    state: ServiceState,
    decision: Decision,
    options: UpdateOptions,
    events: str | os.PathLike[str] | None,
) -> _Renewal:
    """Train a challenger and let the winner stay; note it in the state."""
    standing, end, how = state.standing, str(state.end), decision.how
    assert how is not None
    try:
        unseen = (begin_of(series, 1) - trained_until(forecaster.model_)) / pd.Timedelta(days=1)
        days = min(options.trial_days, decision.most_days, max(unseen, 0.0))
        n_steps = trial_steps(forecaster.model_, series, days)
        if trained_until(forecaster.model_) >= begin_of(series, n_steps):
            reason = f"{decision.reason}; the model was trained on days of the trial, so it waits"
            return _Renewal(forecaster, WENT_ON, reason)
        challenger = forecaster.update(state.believed, how, days, events=events)
        both = {"champion": forecaster.model_, "challenger": challenger.model_}
        scale = state.issued["seasonal_mae"].to_numpy()
        against, promised = compare_models(both, series, n_steps, options.level, scale)
    except InputError as e:
        log.warning("no challenger was trained: %s", e)
        standing.trained = end
        return _Renewal(forecaster, WENT_ON, f"{decision.reason}; not trained: {e}")
    standing.trained, standing.anew = end, end if how == ANEW else standing.anew
    won = against.high < 0
    # A winner of little promises no more errors: else it would stop the search for a better one.
    standing.promised = float(np.fmin(standing.promised, promised)) if won else standing.promised
    standing.lost = "" if won else how
    reason = f"{decision.reason}; {how}, its MASE differs from that in service by {against} %"
    if won and trained_until(challenger.model_) < begin_of(series, 1):
        challenger = challenger.learn_all(series)
    winner = challenger if won else forecaster
    return _Renewal(winner, how if won else KEPT, reason, against)


def compare_models(
    models: dict[str, FittedModel],
    series: Series,
    n_steps: int,
    level: float,
    scale: np.ndarray | None = None,
) -> tuple[Estimate, float]:
    """Compare a challenger with the champion on the last steps, see `trial_forecasts`.

    Readings that one of them does not believe count for neither.

    Returns:
        By how many per cent the MASE of the challenger is above that of the champion, with an
        interval over the days of the trial, and the MASE of the challenger.
    """
    sums = {}
    known = np.all(
        [np.isfinite(m.scaler.believed(m.read(series).values)) for m in models.values()], axis=0
    )
    for name, model in models.items():
        forecasts = trial_forecasts(model, model.read(series), n_steps, scale, known)
        total, weight = model_errors(forecasts, "mase").by_day()
        sums[name] = ErrorSums(total[None], weight[None])
    drawn = dataclasses.replace(resample(sums, "mase", neighbours(series.locations)), level=level)
    difference = drawn.relative_difference("challenger", "champion")
    return difference, drawn.error("challenger").value


def trial_forecasts(
    model: FittedModel,
    series: Series,
    n_steps: int,
    scale: np.ndarray | None = None,
    known: np.ndarray | None = None,
) -> xr.Dataset:
    """Return a model's forecasts of the last steps of a history, as in a run's `forecasts.nc`.

    The history is one that the model has read. MASE divides by the `scale` `(cells,)`, by default
    the error of the day before in the steps before the trial. Only the `known` readings
    `(steps, cells)` are targets, by default all that the model believes.
    """
    data = in_trial(model, series, n_steps)
    starts = np.concatenate([data.split.validation, data.split.test])
    split = dataclasses.replace(data.split, validation=starts[:0], test=starts)
    data = dataclasses.replace(data, split=split)
    forecasts = forecasts_dataset({"last": Evaluation(model, data)}, "last")
    if known is not None:
        targets = starts[:, None] + np.arange(model.config.window.horizon)
        forecasts["y"] = forecasts["y"].where(known[targets].transpose(2, 0, 1))
    return forecasts.assign(
        seasonal_mae=("cell", seasonal_scale(data).mae if scale is None else scale)
    )

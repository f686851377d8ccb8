"""What watches a service: errors, coverage, broken counters, anomalies, drift, and late records.

Drift is the distance of Kolmogorov and Smirnov between a cell's values of the last 7 days and those
before. Its p-values would be far too small, since readings follow each other: thresholds are of the
distance itself.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import some
from data_prep.base.files import atomic_path
from data_prep.cube import step_of
from stforecast.federated.runs.run_folder import write_csv
from stforecast.flower.telemetry import family
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.model import saved_scaler
from stforecast.forecasting.planning import Threshold
from stforecast.service import folder
from stforecast.service.cells import STATES, changed_at, sentences
from stforecast.service.delivery import ANYWHERE, end_in_utc
from stforecast.service.expected import thinned_forecasts
from stforecast.service.held import Held, held_back
from stforecast.service.judge import Judged, anomalies, judge
from stforecast.service.scores import Scores, rounded, scores, since
from stforecast.service.settings import MonitorOptions, ServiceSettings

SPANS = (1, 7, 28)
"""Days back over which errors are told."""

JUDGED = 7
"""Days back over which they are judged, and of the inputs whose drift is."""

TABLE, ANOMALIES, METRICS = "monitor.csv", "anomalies.csv", "metrics.prom"
"""Files in the folder `service` of the run: a row for each cell, and for each anomaly of the last
day, and metrics for Prometheus."""

FINE, ALARM, BROKEN, HELD = 0, 20, 21, 22
"""Exit codes: no alarm, any other, only that cells are broken, and that a delivery is held back."""

BLOCK = 500
"""Cells whose values are sorted at a time, to spare memory."""

LONG = 4
"""Days above which records are told to be late by days, not hours."""

SHOWN = ("mase", "bias", "coverage")
"""Errors that are told."""


@dataclass(frozen=True, eq=False)
class Watch:
    """What a service's forecasts and records look like.

    Attributes:
        errors: errors over all cells by days back.
        cells: a row for each cell: its `state` (empty if it is fine) and `since` when, its errors
            over the days of `SPANS`, `missing` share of the last day, `drift`, and how rare the
            `rarest` reading of the day is: one in so many.
        anomalies: a row for each anomaly of the last day, see `judge.anomalies`.
        n_judged: readings of the last day that were judged.
        held: deliveries that are held back.
        now: the present in UTC.
        ended: end of the records' last step, in UTC.
        updated: when an update took records last, in UTC; None before the first.
        nominal: nominal coverage; NaN without bounds.
        one_in: readings of which one is an anomaly where nothing is wrong.
        end: start of the last step in local time.
        alarms: what is beyond its threshold, as sentences.
        code: exit code of the command.
    """

    errors: dict[int, Scores]
    cells: pd.DataFrame
    anomalies: pd.DataFrame
    n_judged: int
    held: list[Held]
    now: pd.Timestamp
    ended: pd.Timestamp
    updated: pd.Timestamp | None
    nominal: float
    one_in: float
    end: pd.Timestamp
    alarms: tuple[str, ...] = ()
    code: int = FINE

    @property
    def late_hours(self) -> float:
        """Hours since the end of the records' last step."""
        return float((self.now - self.ended) / pd.Timedelta(hours=1))

    @property
    def late(self) -> str:
        """How late the records are, in words."""
        days = self.late_hours / 24
        return f"{days:,.0f} days" if days > LONG else f"{self.late_hours:.1f} hours"

    @property
    def broken(self) -> pd.DataFrame:
        """The rows of the cells that are not fine, the gravest first."""
        rows = self.cells[self.cells["state"] != ""]
        return rows.sort_values("state", key=lambda s: s.map(STATES.index), kind="stable")

    def as_json(self) -> dict[str, Any]:
        """Return all but the cells that are fine, for one line of JSON."""
        spans = {
            f"{days}d": {name: rounded(of)[name] for name in (*SHOWN, "n")}
            for days, of in self.errors.items()
        }
        cells = self.broken[["cell", "state", "since"]].astype(str).to_dict("records")
        held = [{n: getattr(one, n) for n in ("records", "kind", "reason", "kept")}
                for one in self.held]  # fmt: skip
        return {
            "until": str(self.end), "now": f"{self.now:%Y-%m-%dT%H:%MZ}",
            "late_hours": round(self.late_hours, 2), "errors": spans, "cells": cells,
            "anomalies": len(self.anomalies), "held": held, "alarms": list(self.alarms),
        }  # fmt: skip

    def metrics(self) -> str:
        """Return the metrics in Prometheus's text format."""

        def of_spans(name: str) -> dict[str, float]:
            values = {d: float(getattr(of, name)) for d, of in self.errors.items()}
            return {f'{{days="{d}"}}': v for d, v in values.items() if np.isfinite(v)}

        worst = {n: float(self.cells[n].max()) for n in ("missing", "drift")}
        states = self.cells["state"].value_counts()
        times = {"records_end": self.ended, "monitor": self.now, "last_update": self.updated}
        at = {n: round(t.timestamp(), 3) for n, t in times.items() if t is not None}
        table = [
            ("mase", "Mean absolute error by that of a day before in training.", of_spans("mase")),
            ("bias", "Mean of forecast less value, in the data's units.", of_spans("bias")),
            ("coverage_ratio", "Share of the values within their bounds.", of_spans("coverage")),
            ("scored_values", "Values that forecasts were scored by.", of_spans("n")),
            ("records_end_timestamp_seconds", "End of the last records.", at["records_end"]),
            ("last_update_timestamp_seconds", "Time at which records were taken last.",
             at.get("last_update")),
            ("monitor_timestamp_seconds", "Time that the last monitor was about.", at["monitor"]),
            ("missing_ratio_max", "Largest share of a day that a cell lacks.", worst["missing"]),
            ("drift_ratio_max", "Largest drift of a cell's values.", worst["drift"]),
            ("cells", "Cells by state of their counters; fine if nothing is found.",
             {f'{{state="{s or "fine"}"}}': int(states.get(s, 0)) for s in ("", *STATES)}),
            ("anomalies", "Anomalies of the last day.", len(self.anomalies)),
            ("held_deliveries", "Deliveries that are held back.", len(self.held)),
            ("alarms", "Alarms.", len(self.alarms)),
        ]  # fmt: skip
        return "".join(family(f"stforecast_service_{name}", text, of) for name, text, of in table)


def monitor(
    run: str | os.PathLike[str],
    now: pd.Timestamp | None = None,
    page: Path | None = None,
    threshold: Threshold | None = None,
) -> Watch:
    """Look at a run's service, and write what is found into its folder.

    That is `monitor.csv`, `anomalies.csv` and `metrics.prom`.

    Args:
        run: folder of a run; before its first update, no forecast is scored yet.
        now: time in UTC that all is about, and at which records may be late; by default the
            present.
        page: HTML file to write, too.
        threshold: capacity or limit of the page's forecasts, one or one of each cell.

    Raises:
        InputError: if the run's state is damaged, its data are gone before the first update, or a
            threshold is missing or impossible.
    """
    path = Path(run)
    opened = folder.open_run(path)
    options, where = ServiceSettings.read(path).monitor, folder.last_state(path)
    state = folder.read_state(where) if where else folder.state_before(opened)
    judged = judge(thinned_forecasts(opened), state, options, saved_scaler(path))
    updated = (where / folder.STATE).stat().st_mtime if where else None
    watch = Watch(
        {days: scores(since(state.issued, state.end, days)) for days in SPANS},
        _cells(judged, state.issued, options),
        anomalies(judged, state, options.anomaly_in),
        judged.n_judged,
        held_back(path),
        pd.Timestamp.now("UTC") if now is None else now.tz_localize("UTC"),
        end_in_utc(state.history, step_of(state.history)),
        None if updated is None else pd.Timestamp(updated, unit="s", tz="UTC"),
        float(state.issued.attrs.get("coverage", np.nan)),
        options.anomaly_in,
        judged.local[-1],
    )
    watch = _judged(watch, options)
    service = path / folder.IN_SERVICE.parts[0]
    write_csv(watch.cells, service / TABLE)
    write_csv(watch.anomalies, service / ANOMALIES)
    with atomic_path(service / METRICS) as part:
        part.write_text(watch.metrics())
    if page is not None:
        _write_page(path, page, watch, state, now, threshold)
    return watch


def _write_page(
    run: Path,
    page: Path,
    watch: Watch,
    state: folder.ServiceState,
    now: pd.Timestamp | None,
    threshold: Threshold | None,
) -> None:
    # They import plotly.
    from stforecast.forecasting.outlook import make_outlook
    from stforecast.report.service import write_service_page

    forecaster = Forecaster.load(run)
    series = forecaster.read(state.history)
    about = [] if now is None else ["--now", f"{now:%Y-%m-%dT%H:%M}"]
    if threshold is not None:
        about += ["--threshold", "FILE.csv" if isinstance(threshold, Mapping) else str(threshold)]
    command = shlex.join(["stforecast", "monitor", str(run), *about, "--page", str(page)])
    title = f"{series.service} in service, {'/'.join(run.resolve().parts[-2:])}"
    believed, tested = forecaster.read(state.believed), forecaster.tested()
    found = make_outlook(forecaster, believed, threshold=threshold, tested=tested)
    write_service_page(page, title, watch, state, series, found, command)


def _cells(judged: Judged, issued: xr.Dataset, options: MonitorOptions) -> pd.DataFrame:
    """Return a row for each cell of the forecasts."""
    end, values, found = judged.readings.index[-1], judged.readings.to_numpy(), judged.found
    parts = np.array_split(values, -(-values.shape[1] // BLOCK), axis=1)
    drift = np.concatenate([_drift(part, JUDGED * judged.day) for part in parts])
    state, begun = found.state.copy(), found.since.copy()
    with np.errstate(invalid="ignore"):
        far = drift - np.nanmedian(np.append(drift, 0.0)) > (options.drift or np.inf)
    for cell in np.flatnonzero(far & (state == "")):
        state[cell], begun[cell] = "drifted", changed_at(values[:, cell], judged.day)
    rows: dict[str, Any] = {
        "cell": issued["cell"].to_numpy(),
        "state": state,
        "since": judged.since(begun),
    }
    for days in SPANS:
        of = scores(since(issued, end, days), by_cell=True)
        rows |= {f"{name}_{days}d": getattr(of, name) for name in SHOWN}
    rows["missing"] = judged.missing[-judged.day :].mean(axis=0)
    rows["drift"] = drift
    rows["rarest"] = np.fmax.reduce(judged.rarity[-judged.day :], axis=0)
    return pd.DataFrame(rows).round(4)


def _drift(values: np.ndarray, n_recent: int) -> np.ndarray:
    """Return the distance of Kolmogorov and Smirnov of each cell's last values from those before.

    Values are `(steps, cells)`, NaN where missing; the result `(cells,)` is NaN where one of the
    two has no value.
    """
    order = values.argsort(axis=0)  # NaN last
    ordered = np.take_along_axis(values, order, axis=0)
    recent, known = order >= len(values) - n_recent, np.isfinite(ordered)
    # Two distribution functions, which are compared after the last of equal values.
    counts = [(known & part).cumsum(axis=0) for part in (recent, ~recent)]
    with np.errstate(invalid="ignore"):
        one, other = (n / n[-1] for n in counts)
    last = np.diff(ordered, axis=0, append=np.nan) != 0
    found: np.ndarray = np.where(known & last, np.abs(one - other), 0.0).max(axis=0)
    return np.where((counts[0][-1] > 0) & (counts[1][-1] > 0), found, np.nan)


def _judged(watch: Watch, options: MonitorOptions) -> Watch:
    """Return a watch with its alarms and the exit code."""
    held = tuple(str(one) for one in watch.held)
    states = (watch.cells[name].tolist() for name in ("cell", "state", "since"))
    broken = tuple(sentences(*states)) if options.name_cells else ()
    others = tuple(_alarms(watch, options))
    code = HELD if held else ALARM if others else BROKEN if broken else FINE
    return replace(watch, alarms=(*held, *broken, *others), code=code)


def _alarms(watch: Watch, options: MonitorOptions) -> list[str]:
    """Return a sentence for each threshold that is exceeded."""
    found, of, cells = [], watch.errors[JUDGED], watch.cells
    mase, mean, coverage = float(of.mase), float(of.mean), float(of.coverage)
    if options.most_mase and mase > options.most_mase:
        found.append(
            f"the error of the last {JUDGED} days is {mase:.3g} times the error of the "
            f"value one day before in training; most_mase is {options.most_mase:g}"
        )
    if options.most_bias and mean and abs(of.bias / mean) > options.most_bias:
        way = "high" if of.bias / mean > 0 else "low"
        found.append(
            f"forecasts of the last {JUDGED} days were {abs(of.bias / mean):.0%} too {way} on "
            f"average; most_bias is {options.most_bias:.0%}"
        )
    if options.coverage_below and coverage < watch.nominal - options.coverage_below:
        found.append(
            f"bounds of {watch.nominal:.0%} held {coverage:.1%} of the values of the last {JUDGED} "
            f"days; coverage_below is {options.coverage_below:.0%}"
        )
    if options.late_hours and watch.late_hours > options.late_hours:
        found.append(
            f"the last records ended {watch.late} ago; late_hours is {options.late_hours:g}"
        )
    if watch.ended - watch.now > ANYWHERE:
        found.append(
            f"the last records end {-watch.late_hours:,.0f} hours after now; check their times"
        )
    lacking, drift = options.missing_share, options.drift
    states = cells["state"]
    for beyond, what in (
        (states.isin(STATES[:-1]), f"are broken ({', '.join(STATES[:-1])})"),
        (cells["missing"] > lacking, f"lack more than {lacking:.0%} of the last day"),
        (cells["drift"] > (drift or 1), f"have drifted by more than {drift:g} in {JUDGED} days"),
    ):
        names = cells["cell"][beyond].tolist()
        if len(names) > options.cells_share * len(cells):
            found.append(f"{len(names)} of {len(cells)} cells {what}: {some(names)}")
    return found

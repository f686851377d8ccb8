"""What watches a service: errors, coverage, drift of the inputs, missing, stuck and late records.

Drift is the distance of Kolmogorov and Smirnov between a cell's values of the last 7 days and those
before. Its p-values would be far too small, since readings follow each other: thresholds are of the
distance itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import some
from data_prep.base.files import atomic_path
from data_prep.cube import local_time, observed, step_of
from stforecast.federated.runs.run_folder import write_csv
from stforecast.flower.telemetry import family
from stforecast.service import folder
from stforecast.service.scores import Scores, rounded, scores, since
from stforecast.service.settings import MonitorOptions, ServiceSettings

SPANS = (1, 7, 28)
"""Days back over which errors are told."""

JUDGED = 7
"""Days back over which they are judged, and of the inputs whose drift is."""

TABLE, METRICS = "monitor.csv", "metrics.prom"
"""Files in the folder `service` of the run: a row for each cell, and metrics for Prometheus."""

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
        cells: a row for each cell: its errors over the days of `SPANS`, `missing` share of the last
            day, `stuck` hours, and `drift`.
        late_hours: hours since the end of the records' last step.
        nominal: nominal coverage; NaN without bounds.
        end: start of the last step in local time.
        alarms: what is beyond its threshold, as sentences.
    """

    errors: dict[int, Scores]
    cells: pd.DataFrame
    late_hours: float
    nominal: float
    end: pd.Timestamp
    alarms: tuple[str, ...]

    @property
    def late(self) -> str:
        """How late the records are, in words."""
        days = self.late_hours / 24
        return f"{days:,.0f} days" if days > LONG else f"{self.late_hours:.1f} hours"

    def as_json(self) -> dict[str, Any]:
        """Return all but the cells, for one line of JSON."""
        spans = {
            f"{days}d": {name: rounded(of)[name] for name in (*SHOWN, "n")}
            for days, of in self.errors.items()
        }
        return {"until": str(self.end), "late_hours": round(self.late_hours, 2), "errors": spans,
                "alarms": list(self.alarms)}  # fmt: skip

    def metrics(self) -> str:
        """Return the metrics in Prometheus's text format."""

        def of_spans(name: str) -> dict[str, float]:
            values = {d: float(getattr(of, name)) for d, of in self.errors.items()}
            return {f'{{days="{d}"}}': v for d, v in values.items() if np.isfinite(v)}

        worst = {n: float(self.cells[n].max()) for n in ("missing", "stuck", "drift")}
        table = [
            ("mase", "Mean absolute error by that of the day before.", of_spans("mase")),
            ("bias", "Mean of forecast less value, in the data's units.", of_spans("bias")),
            ("coverage", "Share of the values within their bounds.", of_spans("coverage")),
            ("scored_values", "Values that forecasts were scored by.", of_spans("n")),
            ("late_hours", "Hours since the end of the last records.", round(self.late_hours, 3)),
            ("missing_share_max", "Largest share of a day that a cell lacks.", worst["missing"]),
            ("stuck_hours_max", "Longest time for which a cell reports one value.", worst["stuck"]),
            ("drift_max", "Largest drift of a cell's values.", worst["drift"]),
            ("alarms", "Alarms.", len(self.alarms)),
        ]  # fmt: skip
        return "".join(family(f"stforecast_service_{name}", text, of) for name, text, of in table)


def monitor(
    run: str | os.PathLike[str], now: pd.Timestamp | None = None, page: Path | None = None
) -> Watch:
    """Look at a run's service, and write `monitor.csv` and `metrics.prom` into its folder.

    Args:
        run: folder of a run; before its first update, no forecast is scored yet.
        now: time in UTC at which records may be late; by default the present.
        page: HTML file to write, too.

    Raises:
        InputError: if the run's state is damaged, or its data are gone before the first update.
    """
    path = Path(run)
    opened = folder.open_run(path)
    options, where = ServiceSettings.read(path).monitor, folder.last_state(path)
    state = folder.read_state(where) if where else folder.state_before(opened)
    errors = {days: scores(since(state.issued, state.end, days)) for days in SPANS}
    watch = Watch(
        errors, _cells(state.history, state.issued, options), _late(state.history, now),
        float(state.issued.attrs.get("coverage", np.nan)), local_time(state.history)[-1], (),
    )  # fmt: skip
    watch = replace(watch, alarms=tuple(_alarms(watch, options)))
    service = path / folder.IN_SERVICE.parts[0]
    write_csv(watch.cells, service / TABLE)
    with atomic_path(service / METRICS) as part:
        part.write_text(watch.metrics())
    if page is not None:
        _write_page(path, page, watch, state)
    return watch


def _write_page(run: Path, page: Path, watch: Watch, state: folder.ServiceState) -> None:
    # They import torch and plotly.
    from stforecast.forecasting.forecaster import Forecaster
    from stforecast.forecasting.outlook import make_outlook
    from stforecast.report.service import write_service_page

    forecaster = Forecaster.load(run)
    series = forecaster.read(state.history)
    command = f"stforecast monitor {quote(str(run))} --page {quote(str(page))}"
    title = f"{series.service} in service, {'/'.join(run.resolve().parts[-2:])}"
    found = make_outlook(forecaster, series)
    write_service_page(page, title, watch, state, series, found, command)


def _late(history: xr.Dataset, now: pd.Timestamp | None) -> float:
    """Return the hours since the end of the last step."""
    present = pd.Timestamp.now("UTC") if now is None else now.tz_localize("UTC")
    zone = history.attrs.get("time_zone", "UTC") if history.attrs.get("clock") == "local" else "UTC"
    end = history.indexes["time"][-1] + step_of(history)
    end = end.tz_localize(zone, ambiguous=True, nonexistent="shift_forward")
    return float((present - end) / pd.Timedelta(hours=1))


def _cells(history: xr.Dataset, issued: xr.Dataset, options: MonitorOptions) -> pd.DataFrame:
    """Return a row for each cell of the forecasts."""
    end, step = history.indexes["time"][-1], step_of(history)
    rows: dict[str, Any] = {"cell": issued["cell"].to_numpy()}
    for days in SPANS:
        of = scores(since(issued, end, days), by_cell=True)
        rows |= {f"{name}_{days}d": getattr(of, name) for name in SHOWN}
    service = str(issued.attrs["service"])
    values = observed(history, service).sel(cell=issued["cell"]).to_numpy()
    day, week = (round(pd.Timedelta(days=n) / step) for n in (1, JUDGED))
    rows["missing"] = np.isnan(values[-day:]).mean(axis=0)
    rows["stuck"] = [_stuck(v) * (step / pd.Timedelta(hours=1)) for v in values.T]
    parts = np.array_split(values, -(-values.shape[1] // BLOCK), axis=1)
    rows["drift"] = np.concatenate([_drift(part, week) for part in parts])
    return pd.DataFrame(rows).round(4)


def _stuck(values: np.ndarray) -> int:
    """Return for how many steps the last known value has been the same; 0 if it is 0 or alone."""
    known = values[np.isfinite(values)]
    if not len(known) or known[-1] == 0:
        return 0
    other = np.flatnonzero(known != known[-1])
    n = len(known) - 1 - (other[-1] if len(other) else -1)
    return n if n > 1 else 0


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


def _alarms(watch: Watch, options: MonitorOptions) -> list[str]:
    """Return a sentence for each threshold that is exceeded."""
    found, of, cells = [], watch.errors[JUDGED], watch.cells
    mase, mean, coverage = float(of.mase), float(of.mean), float(of.coverage)
    if options.most_mase and mase > options.most_mase:
        found.append(
            f"the error of the last {JUDGED} days is {mase:.3g} times that of the day before; "
            f"most_mase is {options.most_mase:g}"
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
    for name, limit, what in (
        ("missing", options.missing_share, f"lack more than {options.missing_share:.0%} of the "
         "last day"),
        ("stuck", options.stuck_hours, "have reported one value for more than "
         f"{options.stuck_hours:g} hours"),
        ("drift", options.drift, f"have drifted by more than {options.drift:g} in {JUDGED} days"),
    ):  # fmt: skip
        beyond = cells["cell"][cells[name] > limit].tolist() if limit else []
        if len(beyond) > options.cells_share * len(cells):
            found.append(f"{len(beyond)} of {len(cells)} cells {what}: {some(beyond)}")
    return found

"""Names of errors, steps ahead and tasks in tables and figures."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from stforecast.bench.run_groups import RunGroup, group_runs
from stforecast.forecasting.results import ForecastRun, data_of
from stforecast.metrics import METRICS

WORDS = frozenset({"bias", "coverage", "width", "pinball", "scaled_pinball"})
"""Metrics with a name that is no abbreviation."""


def short_title(metric: str) -> str:
    """Return the title of an error without its unit.

    >>> short_title("raw_mse"), short_title("mase"), short_title("scaled_pinball")
    ('MSE', 'MASE', 'scaled pinball')
    """
    kind = metric.removeprefix("raw_")
    if kind in METRICS and METRICS[kind].heading:
        return METRICS[kind].heading
    return kind.replace("_", " ") if kind in WORDS else kind.upper()


def skill_title(metric: str) -> str:
    """Return the title of the skill in an error.

    >>> skill_title("raw_mae")
    'skill in MAE, %'
    """
    return f"skill in {short_title(metric)}, %"


def error_title(metric: str, units: str = "data units") -> str:
    """Return the title of an error.

    >>> error_title("mse"), error_title("raw_mae"), error_title("mase")
    ('MSE', 'MAE, data units', 'MASE')
    """
    kind, title = metric.removeprefix("raw_"), short_title(metric)
    found = METRICS.get(kind)
    if kind == metric or found is None or found.relative:
        return title
    return f"{title}, {units}{'²' if found.squared and units != 'data units' else ''}"


def shown_steps(horizon: int) -> list[int]:
    """Return the steps ahead in a table: 3, 6 and 12 of 12.

    >>> shown_steps(12), shown_steps(24), shown_steps(2)
    ([3, 6, 12], [6, 12, 24], [1, 2])
    """
    return sorted({math.ceil(horizon / 4), math.ceil(horizon / 2), horizon})


def time_ahead(step: int, run: ForecastRun) -> str:
    """Format a step ahead, in minutes or hours if the run gives the length of a step.

    An hour of shorter steps is "60 min", as in the tables of METR-LA.
    """
    length = run.about.get("step_minutes", math.nan)
    minutes = step * length
    if math.isnan(minutes):
        return f"step {step}"
    in_minutes = minutes % 60 or (minutes <= 60 and length < 60)
    return f"{minutes:g} min" if in_minutes else f"{minutes / 60:g} h"


def horizon_ahead(run: ForecastRun) -> str:
    """Format all steps of a run, such as "1 h ahead" or "up to 24 h ahead"; empty if unknown."""
    horizon = run.settings.get("horizon")
    if horizon is None:
        return ""
    return f"{'up to ' if int(horizon) > 1 else ''}{time_ahead(int(horizon), run)} ahead"


APART = ("service", "split", "horizon", "scale", "path")
"""Facts by which tasks of data with one name differ, in the order of their use in names."""


def by_task(
    runs: Sequence[ForecastRun], apart: Sequence[str] = APART
) -> dict[str, list[RunGroup[ForecastRun]]]:
    """Return groups of runs by task: by data, service, split, horizon and scaling, or by `apart`.

    A task is named by its data, by its horizon if not all have the same, and by what else
    distinguishes it from others of these data. A folder given twice counts once.
    """
    members: dict[str, list[ForecastRun]] = {}
    for run in runs:
        own = _facts(run) | {"path": str(data_of(run.about).resolve())}  # However it was typed.
        members.setdefault(json.dumps([own["data"], *(own[k] for k in apart)]), []).append(run)
    facts = [_facts(of_task[0]) for of_task in members.values()]
    names = [own["data"] for own in facts]
    for key in apart:
        rivals = [
            [o for o, n in zip(facts, names, strict=True) if n == name or key == "horizon"]
            for name in names
        ]
        names = [
            f"{name}, {own[key]}" if any(other[key] != own[key] for other in others) else name
            for name, own, others in zip(names, facts, rivals, strict=True)
        ]
    groups = [group_runs(of_task) for of_task in members.values()]
    return dict(zip(names, groups, strict=True))


def _facts(run: ForecastRun) -> dict[str, str]:
    """Return what may distinguish tasks, as texts for their names."""
    settings = run.settings
    return {
        "path": run.about["data"],
        "split": f"split {settings.get('split')}",
        **run.facts(),
        "horizon": horizon_ahead(run),
        "scale": f"scaled by {settings.get('scale')}",
    }

"""Tasks: runs that were tested on the same data, grouped and named."""

from __future__ import annotations

import json
from collections.abc import Sequence

from stforecast.bench.run_groups import RunGroup, group_runs
from stforecast.comparison.steps import horizon_ahead
from stforecast.results import ForecastRun, data_of

APART = ("service", "split", "horizon", "scale", "path")
"""Facts by which tasks of data with one name differ, in the order of their use in names."""


def by_task(
    runs: Sequence[ForecastRun], apart: Sequence[str] = APART
) -> dict[str, list[RunGroup[ForecastRun]]]:
    """Return groups of runs by task: data, service, split, horizon and scaling.

    A task is named by its data, by its horizon if not all have the same, and by what else
    distinguishes it from others of these data.

    Args:
        runs: finished runs; a folder given twice counts once.
        apart: those of `APART` in which the runs of one task must agree.
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

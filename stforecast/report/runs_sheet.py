"""Runs sheet: dates, settings and versions of runs, and the commands that repeat them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_prep.errors import InputError
from stforecast.bench.run_groups import R, RunGroup
from stforecast.comparison.folds import folds_of
from stforecast.federated.runs.run import Run
from stforecast.report.tables import Table, number
from stforecast.results import ForecastRun, data_of


@dataclass(frozen=True)
class RunsSheet:
    """How runs were made.

    Attributes:
        dates: first and last target of each part; None without a clock.
        settings: all settings of each method.
        commands: command that repeats the first run of each method, by its name.
        versions: versions of packages.
    """

    dates: Table | None
    settings: Table
    commands: dict[str, str]
    versions: str


def forecasts_sheet(groups: Sequence[RunGroup[ForecastRun]]) -> RunsSheet:
    """Describe the forecast runs of one task.

    Args:
        groups: runs of each method.
    """
    return runs_sheet(groups, repeat_command, _dates(groups))


def runs_sheet(
    groups: Sequence[RunGroup[R]], repeat: Callable[[R], str], dates: Table | None = None
) -> RunsSheet:
    """Describe the runs of one task.

    Args:
        groups: runs of each method.
        repeat: returns the command that repeats a run.
        dates: first and last target of each part.
    """
    names = list(dict.fromkeys(name for group in groups for name in group.runs[0].settings))
    rows = []
    for name in names:
        values = {group.name: group.runs[0].settings.get(name) for group in groups}
        rows.append(
            {"setting": name}
            | {method: _shown(value) for method, value in values.items() if value is not None}
        )
    versions = {
        f"{package} {version}"
        for group in groups
        for run in group.runs
        for package, version in run.about.get("versions", {}).items()
    }
    return RunsSheet(
        dates,
        Table("All settings, as given", rows),
        {group.name: repeat(group.runs[0]) for group in groups},
        ", ".join(sorted(versions)),
    )


def _dates(groups: Sequence[RunGroup[ForecastRun]]) -> Table:
    rows = []
    for number_of_fold, run in folds_of(run for g in groups for run in g.runs).items():
        parts = run.about.get("parts") or {}
        fold = {"fold": str(number_of_fold)} if number_of_fold else {}
        rows += [
            {**fold, "part": part, "first target": span["first"], "last target": span["last"]}
            for part, span in parts.items()
            if span
        ]
    return Table("Dates, on the clock of the data", rows)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else str(value)


def repeat_command(run: ForecastRun) -> str:
    """Return the command that repeats a forecast run."""
    usual = _defaults(run.method, str(run.settings.get("model", "")))
    return command_of(run, usual, "--data", str(data_of(run.about)))


def command_of(run: Run, usual: Mapping[str, Any], *words_before: str) -> str:
    """Return the command of a run, with the settings that are not defaults.

    Args:
        run: the run.
        usual: default settings.
        *words_before: words before the settings.
    """
    words = [*run.command.split(), "--method", run.method, *words_before]
    for name, value in run.settings.items():
        if name == "method" or value is None or (name in usual and usual[name] == value):
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    words += ["--label", run.label] if run.label != run.method else []
    return shlex.join([*words, "--out", "FOLDER"])


def _defaults(method: str, model: str) -> dict[str, Any]:
    """Return the defaults of a method; none if it is not installed here."""
    from stforecast.config import defaults, resolve  # imports torch

    try:
        usual = defaults(method)
        return {**resolve(method, model=model or usual["model"]).flat(), "model": usual["model"]}
    except InputError:
        return {}

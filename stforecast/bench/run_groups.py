"""Runs that belong together, names that tell them from others, and rows of their tables."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pandas as pd

from stforecast.federated.runs.run import Run

R = TypeVar("R", bound=Run)

ALL = "all"
"""In a table: over all clients, or over the whole horizon."""


@dataclass(frozen=True)
class RunGroup(Generic[R]):
    """Runs that differ in nothing but their seed: what may be averaged.

    Attributes:
        base: the runs' own label.
        tags: what tells the group from the others it is shown with.
        runs: at least one run, in the order given.
    """

    base: str
    tags: tuple[str, ...]
    runs: tuple[R, ...]

    @property
    def name(self) -> str:
        """Unique among those it is shown with, as in "fuels (milan, tau 0.1)"."""
        return self.named()

    @property
    def label(self) -> str:
        """Name, with the number of runs if there are several: "fuels (tau 0.1, 3 runs)"."""
        return self.named(f"{len(self.runs)} runs") if len(self.runs) > 1 else self.name

    def run_label(self, run: R) -> str:
        """Name of one of the runs: "fuels (tau 0.1, seed 2)"."""
        return self.named(f"seed {run.seed}")

    def named(self, *more: str) -> str:
        """Name with further tags."""
        tags = (*self.tags, *more)
        return f"{self.base} ({', '.join(tags)})" if tags else self.base


def group_runs(runs: Sequence[R]) -> list[RunGroup[R]]:
    """Gather the runs that differ in nothing but their seed, and name every group.

    A name is the runs' label with what it takes to tell the groups apart: facts about the data if
    these differ, then settings.

    Args:
        runs: finished runs; a folder given twice counts once.
    """
    groups: dict[str, list[R]] = {}
    for run in {run.folder.resolve(): run for run in runs}.values():
        groups.setdefault(json.dumps([run.label, _facts(run)]), []).append(run)
    tags = _tags([members[0] for members in groups.values()])
    return [
        RunGroup(members[0].label, tags[place], tuple(members))
        for place, members in enumerate(groups.values())
    ]


def _facts(run: Run) -> dict[str, Any]:
    """What may set a run's curve apart, in the order in which names should say it."""
    data = run.facts()
    told = run.no_difference | data.keys()
    settings = {key: v for key, v in run.settings.items() if key not in told}
    return {**data, **settings, "path": run.about["data"]}


def _tags(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """As many facts on each run as it takes, with its label, to tell it from the others."""
    facts = [_facts(run) for run in runs]
    of_data = {name for run in runs for name in run.facts()}
    tags: list[tuple[str, ...]] = [() for _ in runs]
    for key in dict.fromkeys(key for own in facts for key in own):
        so_far = [(run.label, tag) for run, tag in zip(runs, tags, strict=True)]
        for i, own in enumerate(facts):
            rivals = [
                other
                for other, name in zip(facts, so_far, strict=True)
                if key in of_data or name == so_far[i]
            ]
            if any(other.get(key) != own.get(key) for other in rivals):
                plain = key in of_data or key == "path"
                tags[i] += (str(own.get(key)) if plain else f"{key} {own.get(key)}",)
    return tags


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Settings that several of the runs have and that are not the same for all of those."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for name, value in run.settings.items():
            if name not in run.no_difference | {"method"}:
                values.setdefault(name, set()).add(str(value))
    return [name for name, found in values.items() if len(found) > 1]


def select(table: pd.DataFrame, **wanted: str | Collection[str]) -> pd.DataFrame:
    """Rows of a table whose columns hold the wanted value, or one of several.

    >>> table = pd.DataFrame({"metric": ["mse", "mae", "mse"], "split": ["test", "test", "train"]})
    >>> select(table, metric=("mse", "mae"), split="test").index.tolist()
    [0, 1]
    """
    for column, value in wanted.items():
        values = [value] if isinstance(value, str) else list(value)
        table = table[table[column].isin(values)]
    return table


def pooled(errors: pd.DataFrame) -> pd.DataFrame:
    """Rows of errors over all clients and the whole horizon."""
    return errors[(errors["client"] == ALL) & (errors["horizon"] == ALL)]


def by_client(errors: pd.DataFrame) -> pd.DataFrame:
    """Rows of errors of one client each, over the whole horizon."""
    return errors[(errors["client"] != ALL) & (errors["horizon"] == ALL)]


def by_step(errors: pd.DataFrame) -> pd.DataFrame:
    """Rows of errors of one step ahead each, over all clients."""
    return errors[(errors["client"] == ALL) & (errors["horizon"] != ALL)]

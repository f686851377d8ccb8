"""Groups of runs with unique names, and rows of their tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pandas as pd

from stforecast.federated.runs.run_folder import Run

R = TypeVar("R", bound=Run)
T = TypeVar("T")
K = TypeVar("K")

ALL = "all"
"""Value in a table for all clients, or for the whole horizon."""


@dataclass(frozen=True)
class RunGroup(Generic[R]):
    """Runs that differ only in their seed, so that they may be averaged.

    Attributes:
        base: the runs' own label.
        tags: facts and settings that distinguish the group from the others it is shown with.
        runs: at least one run, in the order given.
    """

    base: str
    tags: tuple[str, ...]
    runs: tuple[R, ...]

    @property
    def name(self) -> str:
        """Name, unique among the groups it is shown with: "fuels (milan, tau 0.1)"."""
        return self.named()

    @property
    def label(self) -> str:
        """Name, with the number of runs if there are several: "fuels (tau 0.1, 3 runs)"."""
        return self.named(f"{len(self.runs)} runs") if len(self.runs) > 1 else self.name

    def run_label(self, run: R) -> str:
        """Return the name of one of the runs: "fuels (tau 0.1, seed 2)"."""
        return self.named(f"seed {run.seed}")

    def named(self, *more: str) -> str:
        """Return the name with further tags."""
        tags = (*self.tags, *more)
        return f"{self.base} ({', '.join(tags)})" if tags else self.base


def group_runs(runs: Sequence[R]) -> list[RunGroup[R]]:
    """Group runs that differ only in their seed, and name every group; a folder counts once.

    A name is the runs' label with what distinguishes the groups: facts about the data if these
    differ, then settings. A setting of a single value does not distinguish runs that lack it.
    """
    facts = [(run, _facts(run)) for run in {run.folder.resolve(): run for run in runs}.values()]
    values: dict[tuple[str, str], set[str]] = {}
    for run, own in facts:
        for name, value in own.items():
            values.setdefault((run.label, name), set()).add(json.dumps(value))
    groups: dict[str, list[R]] = {}
    for run, own in facts:
        telling = {name: v for name, v in own.items() if len(values[run.label, name]) > 1}
        groups.setdefault(json.dumps([run.label, telling]), []).append(run)
    firsts = [members[0] for members in groups.values()]
    of_data = {"path"}.union(*(run.facts() for run in firsts))

    def text(key: str, value: object) -> str:
        return str(value) if key in of_data else f"{key} {value}"

    known, always = list(map(_facts, firsts)), of_data - {"path"}
    tags = tell_apart([run.label for run in firsts], known, always, text)
    return [
        RunGroup(members[0].label, tags[place], tuple(members))
        for place, members in enumerate(groups.values())
    ]


def _facts(run: Run) -> dict[str, Any]:
    """Return the facts that may distinguish a run, in the order of their use in names."""
    data = run.facts()
    implied = run.no_difference | data.keys()
    settings = {key: v for key, v in run.settings.items() if key not in implied}
    return {**data, **settings, "path": run.about["data"]}


def tell_apart(
    names: Sequence[str],
    facts: Sequence[Mapping[str, Any]],
    always: Collection[str],
    text: Callable[[str, Any], str],
) -> list[tuple[str, ...]]:
    """Return the texts of as many facts of each thing as distinguish it from others of its name.

    Facts are used in their order, and facts in `always` also if the names differ.

    >>> tell_apart(["a", "a"], [{"tau": 1, "lr": 0.1}, {"tau": 1, "lr": 0.2}], (), "{} {}".format)
    [('lr 0.1',), ('lr 0.2',)]
    """
    tags: list[tuple[str, ...]] = [() for _ in names]
    for key in dict.fromkeys(key for own in facts for key in own):
        so_far = list(zip(names, tags, strict=True))
        for i, own in enumerate(facts):
            rivals = [
                other
                for other, name in zip(facts, so_far, strict=True)
                if key in always or name == so_far[i]
            ]
            if any(other.get(key) != own.get(key) for other in rivals):
                tags[i] += (text(key, own.get(key)),)
    return tags


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings that several of the runs have with different values."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for name, value in run.settings.items():
            if name not in run.no_difference | {"method"}:
                values.setdefault(name, set()).add(str(value))
    return [name for name, found in values.items() if len(found) > 1]


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items of each key, in the order in which they come.

    >>> grouped(["ridge", "solo", "rate"], lambda word: word[0])
    {'r': ['ridge', 'rate'], 's': ['solo']}
    """
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def select(table: pd.DataFrame, **wanted: str | Collection[str]) -> pd.DataFrame:
    """Select rows of a table whose columns hold the wanted value, or one of several.

    >>> table = pd.DataFrame({"metric": ["mse", "mae", "mse"], "split": ["test", "test", "train"]})
    >>> select(table, metric=("mse", "mae"), split="test").index.tolist()
    [0, 1]
    """
    for column, value in wanted.items():
        values = [value] if isinstance(value, str) else list(value)
        table = table[table[column].isin(values)]
    return table


def pooled(errors: pd.DataFrame) -> pd.DataFrame:
    """Select errors over all clients and the whole horizon."""
    return errors[(errors["client"] == ALL) & (errors["horizon"] == ALL)]


def by_client(errors: pd.DataFrame) -> pd.DataFrame:
    """Select errors of single clients, over the whole horizon."""
    return errors[(errors["client"] != ALL) & (errors["horizon"] == ALL)]


def by_step(errors: pd.DataFrame) -> pd.DataFrame:
    """Select errors of single steps ahead, over all clients."""
    return errors[(errors["client"] == ALL) & (errors["horizon"] != ALL)]

"""Runs that belong together, and names that tell them from others: in legends and in tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stforecast.results import Run

DATA_FACTS = ("data", "service")
"""What a name says whenever it is not the same for all variants."""

NO_DIFFERENCE = {"seed", "device", "cohort", "workers", "checkpoint_every"}
"""Settings in which the runs of one variant may differ: they do not change what is computed."""


@dataclass(frozen=True)
class Variant:
    """Runs that differ in nothing but their seed: what may be averaged.

    Attributes:
        base: the runs' own label.
        tags: what tells the variant from the others it is shown with.
        runs: at least one run, in the order given.
    """

    base: str
    tags: tuple[str, ...]
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """Unique among those it is shown with, as in "fuels (milan, tau 0.1)"."""
        return self._named()

    @property
    def label(self) -> str:
        """Name, with the number of runs if there are several: "fuels (tau 0.1, 3 runs)"."""
        return self._named(f"{len(self.runs)} runs") if len(self.runs) > 1 else self.name

    def run_label(self, run: Run) -> str:
        """Name of one of the runs: "fuels (tau 0.1, seed 2)"."""
        return self._named(f"seed {run.about['settings']['seed']}")

    def _named(self, *more: str) -> str:
        tags = (*self.tags, *more)
        return f"{self.base} ({', '.join(tags)})" if tags else self.base


def as_variants(runs: Sequence[Run]) -> list[Variant]:
    """Gather the runs that differ in nothing but their seed, and name every variant.

    A name is the runs' label with what it takes to tell the variants apart: data and service if
    there are several, then settings.

    Args:
        runs: finished runs; a folder given twice counts once.
    """
    groups: dict[str, list[Run]] = {}
    for run in {run.folder.resolve(): run for run in runs}.values():
        groups.setdefault(json.dumps([run.label, _facts(run)]), []).append(run)
    tags = _tags([members[0] for members in groups.values()])
    return [
        Variant(members[0].label, tags[place], tuple(members))
        for place, members in enumerate(groups.values())
    ]


def _facts(run: Run) -> dict[str, Any]:
    """What may set a run's curve apart, in the order in which names should say it."""
    data = {"data": Path(run.about["data"]).stem, "service": run.about["service"]}
    told = NO_DIFFERENCE | data.keys()
    settings = {key: v for key, v in run.about["settings"].items() if key not in told}
    return {**data, **settings, "path": run.about["data"]}


def _tags(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """As many facts on each run as it takes, with its label, to tell it from the others."""
    facts = [_facts(run) for run in runs]
    tags: list[tuple[str, ...]] = [() for _ in runs]
    for key in dict.fromkeys(key for own in facts for key in own):
        so_far = [(run.label, tag) for run, tag in zip(runs, tags, strict=True)]
        for i, own in enumerate(facts):
            rivals = [
                other
                for other, name in zip(facts, so_far, strict=True)
                if key in DATA_FACTS or name == so_far[i]
            ]
            if any(other.get(key) != own.get(key) for other in rivals):
                plain = key in (*DATA_FACTS, "path")
                tags[i] += (str(own.get(key)) if plain else f"{key} {own.get(key)}",)
    return tags

"""Lines of the charts: their looks, and losses by round and by communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stforecast.bench.curves import HUES
from stforecast.bench.run_groups import RunGroup
from stforecast.plots.losses import LOSSES
from stforecast.results import ForecastRun

MOST_ROUNDS = 400
"""Largest number of rounds to draw of a run."""

DASHES = ("solid", "dash", "dot", "dashdot")
"""Line styles, in the order of those of figures."""


def looks(places: Mapping[str, int]) -> list[dict[str, str]]:
    """Return name, colour and line style of each line.

    Args:
        places: name of each line to its place, see `stforecast.bench.curves.places`.
    """
    return [
        {
            "name": name,
            "color": HUES[place % len(HUES)],
            "dash": DASHES[place // len(HUES) % len(DASHES)],
        }
        for name, place in places.items()
    ]


def evenly(n: int) -> np.ndarray:
    """Return the places to draw of `n` rounds: all, or evenly spread ones with the last."""
    return np.unique(np.linspace(0, n - 1, MOST_ROUNDS).round().astype(int))


def losses(groups: Sequence[RunGroup[ForecastRun]]) -> list[dict[str, Any]]:
    """Return the losses of each run that trained in rounds.

    Args:
        groups: runs of each method, in the order of the page.

    Returns:
        Place of the method, name of the run, rounds, bytes sent and received so far by all clients,
        and losses. Of many rounds, evenly spread ones with the last.
    """
    found = []
    for place, group in enumerate(groups):
        for run in group.runs:
            table = run.rounds()
            values = {name: table[column].to_numpy(float) for name, column in LOSSES.items()}
            if not any(np.isfinite(v).any() for v in values.values()):
                continue
            sent = (table["bytes_down"] + table["bytes_up"]).cumsum().to_numpy(float)
            shown = evenly(len(table))
            found.append(
                {
                    "method": place,
                    "name": group.run_label(run) if len(group.runs) > 1 else group.name,
                    "loss": str(run.settings.get("loss", "mse")),
                    "round": table["round"].to_numpy()[shown],
                    "bytes": sent[shown],
                    **{name: v[shown] for name, v in values.items()},
                }
            )
    return found

"""Losses by round and by communication."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stforecast.bench.run_groups import RunGroup
from stforecast.plots.losses import LOSSES
from stforecast.results import ForecastRun

MOST_ROUNDS = 400
"""Largest number of rounds to draw of a run."""


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
            shown = np.unique(np.linspace(0, len(table) - 1, MOST_ROUNDS).round().astype(int))
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

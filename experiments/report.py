"""Tables for people: of results, and of what the packages offer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from tabulate import tabulate

from data_prep.registry import data_sets
from stforecast.baselines import BASELINES
from stforecast.federated.method import methods
from stforecast.metrics import METRICS
from stforecast.models import MODELS
from stforecast.results import Run

SHOWN = ("mse", "mae", "raw_mae")
"""Errors in a table: of z-scores, and in the data's units."""


def summary(run: Run) -> str:
    """A finished run in a few lines."""
    rows = [
        {"selection": s, **{m: f"{run.score(m, s):.4f}" for m in SHOWN}} for s in ("best", "last")
    ]
    if not run.about["federated"]:
        rows = [{**rows[0], "selection": "-"}]
    lines = [tabulate(rows, headers="keys", tablefmt="simple", disable_numparse=True)]
    rounds = run.rounds()
    if len(rounds):
        best = rounds["validation_loss"].idxmin() if rounds["validation_loss"].notna().any() else -1
        chosen = "" if best == -1 else f", best at round {rounds['round'][best]}"
        up, down = (_traffic(rounds, way) for way in ("up", "down"))
        lines.append(f"{len(rounds)} rounds{chosen}; a client sends {up} and receives {down}")
    lines.append(f"test errors above, z-scored (raw_: in data units); run in {run.folder}")
    return "\n".join(lines)


def _traffic(rounds: pd.DataFrame, way: str) -> str:
    """Floats that one client sends or receives in a full round."""
    floats = (rounds[f"bytes_{way}"] / rounds["participants"] / 4).max()
    return f"{floats:,.0f} floats a round" if floats else "nothing"


def results_table(runs: Sequence[Run], failures: Mapping[str, str]) -> str:
    """Markdown table: one row a method, mean ± std over seeds, best validation round.

    Args:
        runs: finished runs.
        failures: name of each failed run to its error.
    """
    groups: dict[tuple[str, str], dict[str, list[Run]]] = {}
    for r in runs:
        key = (str(r.metrics()["data"].iloc[0]), str(r.about["service"]))
        groups.setdefault(key, {}).setdefault(r.label, []).append(r)
    parts = []
    for (data, service), rows in groups.items():
        example = next(iter(rows.values()))[0]
        seeds = max(len(r) for r in rows.values())
        parts.append(
            f"**{data}, {service}**: {example.about['clients']} cells, test part of "
            f"`{example.about['settings']['split']}`, {seeds} seed(s), round of the lowest "
            "validation loss\n\n"
            + tabulate(
                [_row(label, r) for label, r in rows.items()],
                headers="keys",
                tablefmt="github",
                disable_numparse=True,
            )
        )
    if failures:
        parts.append("Failed: " + "; ".join(f"{name} ({e})" for name, e in failures.items()))
    return "\n\n".join(parts)


def _row(label: str, runs: Sequence[Run]) -> dict[str, str]:
    rounds = [r.rounds() for r in runs]
    about = runs[0].about
    sent = _traffic(rounds[0], "up").removesuffix(" a round") if len(rounds[0]) else "-"
    pooled = not about["federated"] and BASELINES[runs[0].method].pooled
    return {
        "method": label,
        "pools data": "yes" if pooled else "no",
        "MSE": _spread([r.score("mse") for r in runs]),
        "MSE, last round": _spread([r.score("mse", "last") for r in runs]),
        "MAE": _spread([r.score("mae") for r in runs]),
        "MAE (data units)": _spread([r.score("raw_mae") for r in runs], 4),
        "client sends a round": sent,
        "seconds": f"{np.mean([r.about['seconds'] for r in runs]):.1f}",
    }


def _spread(values: Sequence[float], digits: int = 4) -> str:
    """Mean, and standard deviation where there are several values."""
    mean = f"{np.mean(values):#.{digits}g}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.2g}"


def methods_table() -> str:
    """Every method and reference forecaster, from the registry."""
    rows: list[dict[str, str]] = [
        {"method": f"`{name}`", "what it does": m.summary, "pools data": "no", "source": m.paper}
        for name, m in methods().items()
    ]
    rows += [
        {
            "method": f"`{name}`",
            "what it does": b.summary,
            "pools data": "yes" if b.pooled else "no",
            "source": "reference forecaster",
        }
        for name, b in BASELINES.items()
    ]
    return tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True)


def data_table() -> str:
    """Every data set that `stforecast prepare` knows."""
    rows = []
    for name, module in data_sets().items():
        title = (module.__doc__ or "").strip().splitlines()[0].rstrip(".")
        rows.append([name, title, "yes" if module.SOURCES else "no"])
    return tabulate(rows, headers=["data set", "what it is", "download"], tablefmt="simple")


def models_table() -> str:
    """Every model that federated methods can train."""
    rows = [[name, m.summary] for name, m in MODELS.items()]
    return tabulate(rows, headers=["model", "what it is"], tablefmt="simple")


def metrics_table() -> str:
    """Every metric."""
    rows = [[name, m.description] for name, m in METRICS.items()]
    table = tabulate(rows, headers=["metric", "what it is"], tablefmt="simple")
    return table + "\n\nz-scored errors bear these names; raw_… are in the data's units."


LISTS: dict[str, Callable[[], str]] = {
    "methods": lambda: methods_table().replace("`", ""),
    "data": data_table,
    "models": models_table,
    "metrics": metrics_table,
}
"""What `stforecast list` shows."""

"""Descriptions of federations for `stforecast info`, on their server and on their nodes.

A function `of_…` returns the description of a path, or None if it is of another kind.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from shlex import quote

from data_prep.described import Description, facts
from stforecast.federated.runs.run_folder import BEGUN, CHECKPOINTS
from stforecast.flower.standing import JOURNAL, Standing, read_event_log, read_results, status_text


def of_federation(path: Path) -> Description | None:
    """Describe the results of a federation on its server."""
    if not (path / JOURNAL).exists():
        return None
    results, standing = read_results(path), Standing.of(read_event_log(path))
    about = {**asdict(standing), "results": results}
    command = f"stforecast federate status {quote(str(path))}"
    return Description("federation", about, status_text(standing), command)


def of_node(path: Path) -> Description | None:
    """Describe a federation's run on one of its nodes, which may leave a model and errors."""
    if not (path / CHECKPOINTS).is_dir() or (path / BEGUN).exists() or (path / JOURNAL).exists():
        return None
    from stforecast.forecasting.described import of_model

    kind = "a federation's run on a node"
    if found := of_model(path / "model"):
        command = f"stforecast federate check {quote(str(path))} --data NEWER.nc --days 2"
        return found._replace(kind=kind, next_command=command)
    files = sorted(p.name for p in path.iterdir())
    text = facts({"holds": ", ".join(files), "model": "none that forecasts"})
    return Description(kind, {"files": files}, text)

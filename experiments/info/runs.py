"""Descriptions of runs and folders of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep.base.text import counted
from experiments.info.cubes import facts, step_text, zone_text

ERRORS = ("mse", "mae", "raw_mae", "raw_rmse", "mase")
"""Errors in the description of a run of forecasts."""


def describe_run(folder: Path) -> dict[str, Any]:
    """Describe a finished run.

    Args:
        folder: a folder with `run.json`.

    Returns:
        `label`, `method`, `seed`, `seconds`, `versions` and `data`; of images also `accuracies`; of
        forecasts `service`, `units`, `cells`, `step_minutes`, `time_zone`, `horizon`, `split`,
        `parts` and `errors` on the test part.

    Raises:
        InputError: if a file is damaged.
    """
    from stforecast.federated.runs.run_folder import read_about

    about = read_about(folder, "stforecast run")
    settings = about["settings"]
    described = {
        "label": about.get("label", settings["method"]),
        "method": settings["method"],
        "seed": settings.get("seed"),
        "seconds": about.get("seconds"),
        "versions": about.get("versions", {}),
    }
    if "service" not in about:
        facts = {"of": "images", "data": settings.get("data"), "accuracies": _accuracies(folder)}
        return {**described, **facts}
    names = ("data", "service", "units", "step_minutes", "time_zone", "parts", "chosen")
    return {
        **described,
        "of": "forecasts",
        **{name: about.get(name) for name in names},
        "cells": about.get("clients"),
        "horizon": settings.get("horizon", 1),
        "split": settings.get("split"),
        "errors": _errors(folder),
    }


def _accuracies(folder: Path) -> list[dict[str, Any]]:
    """Return the accuracy after the last round of each model and choice of classes."""
    from vision.results import ImageRun

    run = ImageRun.open(folder)
    return [
        {"model": view, "choosing from": mask, "accuracy": run.accuracy("last", view, mask)}
        for view in run.views
        for mask in run.masks
    ]


def _errors(folder: Path) -> dict[str, float]:
    """Return the errors on the test part, pooled over cells and steps."""
    from stforecast.forecasting.results import ForecastRun

    run = ForecastRun.open(folder)
    selection = str(run.settings.get("select", "best"))
    found = {metric: run.score(metric, selection) for metric in ERRORS}
    return {metric: value for metric, value in found.items() if value == value}


def run_text(about: Mapping[str, Any]) -> str:
    """Return the description of a run as text."""
    label = "" if about["label"] == about["method"] else f"{about['label']}: "
    took = "" if about["seconds"] is None else f", {about['seconds']:.1f} s"
    lines = {
        "method": f"{label}{about['method']}, seed {about['seed']}{took}",
        "data": str(about["data"]),
        "versions": ", ".join(f"{name} {v}" for name, v in about["versions"].items()),
    }
    if about["of"] == "images":
        lines["accuracy"] = "; ".join(
            f"{found['model']} {found['accuracy']:.1%}, choosing from {found['choosing from']}"
            for found in about["accuracies"]
        )
        return facts(lines)
    units = "" if about["units"] in (None, "1") else f" in {about['units']}"
    minutes = about["step_minutes"]
    lines["data"] += f", {about['service']}{units}, {counted(about['cells'] or 0, 'cell')}"
    lines["ahead"] = f"{counted(about['horizon'], 'step')} of {step_text(minutes)}"
    lines["times"] = zone_text(about["time_zone"])
    for part, span in (about["parts"] or {}).items():
        lines[part] = f"{span['first'][:16]} to {span['last'][:16]}" if span else "none"
    lines["split"] = str(about["split"])
    lines["errors"] = ", ".join(f"{n} {v:.4g}" for n, v in about["errors"].items())
    return facts(lines)


def describe_runs(folders: Sequence[Path], root: Path) -> list[dict[str, Any]]:
    """Describe the runs of a folder, such as a benchmark, one row for each."""
    rows = []
    for folder in folders:
        about = describe_run(folder)
        errors = about.get("errors", {})
        rows.append(
            {
                "run": str(folder.relative_to(root)), "method": about["method"],
                "data": Path(str(about["data"])).stem, "seed": about["seed"],
                "mae": errors.get("mae"),
            }
        )  # fmt: skip
    return rows


def runs_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the runs of a folder as a table."""
    from tabulate import tabulate

    return tabulate(
        [{**row, "mae": "-" if row["mae"] is None else f"{row['mae']:.4f}"} for row in rows],
        headers="keys",
        disable_numparse=True,
    )


def describe_unfinished(folder: Path) -> dict[str, Any]:
    """Describe a run that was stopped: its method, data and newest checkpoint.

    Raises:
        InputError: if its description is damaged.
    """
    from stforecast.federated.runs.run_folder import BEGUN, CHECKPOINTS, read_begun

    about = read_begun(folder, "stforecast run", ())
    rounds = sorted(int(p.name.partition("-")[2]) for p in (folder / CHECKPOINTS).rglob("round-*")
                    if p.name.partition("-")[2].isdigit())  # fmt: skip
    return {
        "file": BEGUN,
        "method": about["settings"]["method"],
        "data": about.get("data", about["settings"].get("data")),
        "rounds_done": rounds[-1] if rounds else 0,
        "rounds": about["settings"].get("rounds"),
    }


def unfinished_text(about: Mapping[str, Any]) -> str:
    """Return the description of an unfinished run as text."""
    done = f"{about['rounds_done']} of {about['rounds']} rounds saved"
    return facts({"method": about["method"], "data": str(about["data"]), "state": done})

"""Descriptions of saved forecasters, such as those of `stforecast adapt`."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_prep.base.text import counted, some
from experiments.info.cubes import facts, step_text, zone_text


def describe_model(folder: Path) -> dict[str, Any]:
    """Describe a saved forecaster without loading its arrays.

    Args:
        folder: a folder with `forecaster.json`.

    Returns:
        `method`, `model` (None for a reference forecaster), `seed`, `service`, `units`,
        `step_minutes`, `time_zone` (empty or "local" for times without one, None if it was not
        kept), `horizon`, `cells`, `first_cells`, `adapted`, `trained_on`, `saved` (time of
        the file), and what its windows read: `inputs`, `static` and `events`.

    Raises:
        InputError: if its description is damaged.
    """
    import pandas as pd

    from stforecast.federated.runs.model_files import read_description, restoring
    from stforecast.forecasting.config import resolve
    from stforecast.forecasting.results import MODEL

    file = folder / MODEL
    about = read_description(file, "Forecaster.save")
    with restoring(folder):
        config = resolve(**about["settings"])
        saved = datetime.datetime.fromtimestamp(file.stat().st_mtime).astimezone()
        return {
            "method": config.method,
            "model": config.run.model if config.federated else None,
            "seed": config.run.seed,
            "service": about["service"],
            "units": about["units"],
            "step_minutes": pd.Timedelta(about["step"]) / pd.Timedelta(minutes=1),
            "time_zone": about.get("time_zone"),
            "horizon": config.window.horizon,
            "cells": len(about["cells"]),
            "first_cells": about["cells"][:5],
            "adapted": about.get("adapted") is True,
            "trained_on": about.get("trained_on", {}),
            "saved": saved.isoformat(timespec="seconds"),
            **{name: list(names) for name, names in {
                "inputs": config.window.services, "static": config.window.columns,
                "events": config.window.kinds,
            }.items()},
        }  # fmt: skip


def model_text(about: Mapping[str, Any]) -> str:
    """Return the description of a saved forecaster as text."""
    units = "" if about["units"] == "1" else f" in {about['units']}"
    model = f" of {about['model']}" if about["model"] else ""
    trained = about["trained_on"]
    span = f", {trained['first'][:16]} to {trained['last'][:16]}" if "first" in trained else ""
    known = counted(about["cells"], "cell")
    return facts(
        {
            "method": f"{about['method']}{model}, seed {about['seed']}",
            "forecasts": f"{about['service']}{units}",
            "ahead": f"{counted(about['horizon'], 'step')} of {step_text(about['step_minutes'])}",
            "times": zone_text(about["time_zone"]),
            "cells": f"{known}: {some(about['first_cells'])}"
            + (", …" if about["cells"] > len(about["first_cells"]) else "")
            + ("; adapted to some that it was not trained on" if about["adapted"] else ""),
            "trained on": f"{trained['data']}{span}" if trained else "not noted",
            "reads": _reads(about),
            "saved": about["saved"],
        }
    )


def _reads(about: Mapping[str, Any]) -> str:
    """Say what besides the service itself a history must hold, or must come with it."""
    parts = {
        "the services": about["inputs"],
        "the columns": about["static"],
        "a table of events of the kinds": about["events"],
    }
    return "; ".join(f"{what} {', '.join(names)}" for what, names in parts.items() if names)

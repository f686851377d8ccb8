"""Description of a saved model for `stforecast info`."""

from __future__ import annotations

import datetime
from pathlib import Path
from shlex import quote
from typing import Any

import pandas as pd

from data_prep.base.errors import counted, some
from data_prep.described import Description, facts, step_text, zone_text
from stforecast.federated.runs.model_files import read_description, restoring
from stforecast.forecasting.results import MODEL


def of_model(folder: Path) -> Description | None:
    """Describe a saved forecaster without loading its arrays.

    `model` is None for a reference forecaster. `time_zone` is empty or "local" for times without
    one. Its windows read `inputs`, `static` and `events`.
    """
    file = folder / MODEL
    if not file.is_file():
        return None
    from stforecast.forecasting.config import resolve  # imports torch

    read = read_description(file, "Forecaster.save")
    with restoring(folder):
        config = resolve(**read["settings"])
        saved = datetime.datetime.fromtimestamp(file.stat().st_mtime).astimezone()
        about: dict[str, Any] = {
            "method": config.method,
            "model": config.run.model if config.federated else None,
            "seed": config.run.seed,
            "service": read["service"],
            "units": read["units"],
            "step_minutes": pd.Timedelta(read["step"]) / pd.Timedelta(minutes=1),
            "time_zone": read["time_zone"],
            "horizon": config.window.horizon,
            "cells": len(read["cells"]),
            "first_cells": read["cells"][:5],
            "adapted": read["adapted"],
            "trained_on": read["trained_on"],
            "saved": saved.isoformat(timespec="seconds"),
            "inputs": list(config.window.services),
            "static": list(config.window.columns),
            "events": list(config.window.kinds),
        }
    units = "" if about["units"] == "1" else f" in {about['units']}"
    model = f" of {about['model']}" if about["model"] else ""
    trained = about["trained_on"]
    span = f", {trained['first'][:16]} to {trained['last'][:16]}" if "first" in trained else ""
    known, step = counted(about["cells"], "cell"), step_text(about["step_minutes"])
    # What a history must hold besides the service itself, or what must come with it.
    needed = {
        "the services": about["inputs"],
        "the columns": about["static"],
        "a table of events of the kinds": about["events"],
    }
    lines = {
        "method": f"{about['method']}{model}, seed {about['seed']}",
        "forecasts": f"{about['service']}{units}",
        "ahead": f"{counted(about['horizon'], 'step')} of {step}",
        "times": zone_text(about["time_zone"]),
        "cells": f"{known}: {some(about['first_cells'])}"
        + (", …" if about["cells"] > len(about["first_cells"]) else "")
        + ("; adapted to some that it was not trained on" if about["adapted"] else ""),
        "trained on": f"{trained['data']}{span}" if trained else "not noted",
        "reads": "; ".join(f"{n} {', '.join(names)}" for n, names in needed.items() if names),
        "saved": about["saved"],
    }
    more = " --events EVENTS.csv" if about["events"] else ""
    command = f"stforecast predict {quote(str(folder))} --history NEWER.nc{more} --out forecast.csv"
    return Description("model", about, facts(lines), command)

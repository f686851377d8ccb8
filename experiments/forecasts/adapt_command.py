"""The command that adapts a model to new cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from data_prep.base.errors import InputError
from data_prep.base.text import counted
from experiments.endings import say_next
from experiments.options import (
    EVENTS,
    HELP,
    PATH,
    OptionSections,
    check_cubes,
    check_run,
    from_dataclass,
)


def adapt_options(args: list[str]) -> dict[str, list[click.Option]]:
    """Return the options of the training of new cells."""
    from stforecast.adaptation import AdaptOptions

    return {"New cells": from_dataclass(AdaptOptions)}


@click.command(cls=OptionSections, sections=adapt_options, context_settings=HELP)
@click.argument("run", type=PATH)
@click.option(
    "--history", type=PATH, required=True,
    help="Cube of new cells, with or without cells that the model knows.",
)  # fmt: skip
@click.option("--out", type=PATH, required=True, help="Folder of the model to write.")
@EVENTS
def adapt(run: Path, history: Path, out: Path, **options: Any) -> None:
    """Adapt a model to cells that it has not seen, from a few days of history or none.

    The new model forecasts the cells of the history: known ones as before, new ones by the shared
    part of the method and a personal part that is trained on their last days. Nothing is sent. A
    history shorter than the model's inputs is enough. `stforecast predict` accepts the new model
    like any other.
    """
    check_run(run)
    check_cubes(["--history", str(history)], "--history")
    from stforecast.federated.runs.run_folder import check_new
    from stforecast.forecaster import Forecaster

    if out.resolve() == run.resolve():
        raise InputError(f"{out} is the run itself; choose another --out")
    check_new(out, "stforecast adapt")
    model = Forecaster.load(run)
    adapted = model.adapt(history, **options)
    adapted.save(out)
    known = set(model.cells.tolist())
    n_known = sum(cell in known for cell in adapted.cells.tolist())
    click.echo(
        f"{out}: model of {counted(len(adapted.cells) - n_known, 'new cell')} and "
        f"{counted(n_known, 'known cell')} (of {len(known)} in {run})"
    )
    say_next("predict", out, "--history", history, "--out", "forecast.csv")

"""The command that backtests methods of forecasts, without a benchmark's file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from experiments.bench_command import ENGINE, MORE, chosen_settings, execute
from experiments.options import HELP, JSON, PATH, OptionSections, check_cubes, from_dataclass

if TYPE_CHECKING:
    from stforecast.bench.grid import Grid

FIGURES = ["horizon", "hours"]
"""Figures of a backtest."""


def fold_options(args: list[str]) -> dict[str, list[click.Option]]:
    """Return the options of the folds."""
    check_cubes(args)
    from stforecast.data.folds import FoldOptions

    return {"Folds": from_dataclass(FoldOptions)}


@click.command(cls=OptionSections, sections=fold_options, context_settings=HELP)
@click.option("--data", multiple=True, required=True, help="Cube written by prepare. Repeatable.")
@click.option("--service", multiple=True, help="Variable of the cubes. Repeatable.")
@click.option(
    "--method", multiple=True, required=True, help="See: stforecast list methods. Repeatable."
)
@click.option("--out", type=PATH, required=True, help="Folder for runs and tables.")
@click.option("--seed", type=int, multiple=True, help="Random seed, by default 1. Repeatable.")
@click.option("--horizon", type=int, help="Number of steps ahead.")
@click.option("--rounds", type=int, help="Rounds of federated methods.")
@MORE
@click.option(
    "--reference",
    help="Method that the others are compared with, or 'seasonal naive'; by default the method "
    "with the lowest error.",
)
@ENGINE
@JSON
@click.pass_obj
def backtest(
    obj: dict[str, bool], data: tuple[str, ...], service: tuple[str, ...],
    method: tuple[str, ...], out: Path, seed: tuple[int, ...], horizon: int | None,
    rounds: int | None, more: tuple[str, ...], reference: str | None, engine: str, as_json: bool,
    **folds: Any,
) -> None:  # fmt: skip
    """Test methods on several spans of time, each with models trained before it.

    Every fold has a training, a validation and a test span; the test spans follow each other and
    end with the data. One table sums up all test days. Finished runs are kept: run the same command
    again to resume.

    Example: stforecast backtest --data milan.nc --method ridge --test 7d --out results/
    """
    from stforecast.federated.runs.run_folder import check_folder

    check_folder(out)
    settings = chosen_settings(more, rounds=rounds, horizon=horizon)
    grid = backtest_grid(
        data, service, list(dict.fromkeys(method)), seed, settings, folds, reference
    )
    what = "table, figures, errors"
    execute(grid, out, what, engine, as_json=as_json, progress=obj["progress"])


def backtest_grid(
    data: Sequence[str], services: Sequence[str], methods: Sequence[str], seeds: Sequence[int],
    settings: dict[str, Any], folds: dict[str, Any], reference: str | None,
) -> Grid[Any]:  # fmt: skip
    """Build the benchmark of a backtest.

    Args:
        data: paths of cubes.
        services: their services; empty if each has only one.
        methods: names of methods.
        seeds: seeds; by default 1.
        settings: flat settings of all methods.
        folds: fields of `stforecast.data.folds.FoldOptions`.
        reference: method that the others are compared with, or None.

    Raises:
        InputError: for an unknown method, setting or reference, or an invalid value.
    """
    from experiments.forecasts.benchmark import FORECAST_KIND
    from experiments.forecasts.benchmark import services as scenarios
    from stforecast.bench.grid import make_grid
    from stforecast.bench.grid_file import command_words

    names = ", ".join(Path(path).stem for path in data)
    table = {
        "title": f"Backtest of {names}", "data": list(data), "methods": list(methods),
        "figures": FIGURES, "backtest": folds,
    }  # fmt: skip
    grid = make_grid(FORECAST_KIND, table | ({"reference": reference} if reference else {}))
    flags: dict[str, Sequence[Any]] = {"--method": methods}
    flags |= {f"--{name}": [value] for name, value in folds.items() if value}
    flags |= {"--reference": [reference]} if reference else {}
    command = ("stforecast", "backtest", *command_words(flags, {}))
    grid = dataclasses.replace(grid, command=command)
    return grid.replace(data, scenarios(services), seeds, settings)

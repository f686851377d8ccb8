"""Choice of settings on the validation part, by successive halving over a declared grid.

All candidates train for a few rounds, the best third of them for three times as many, and so on up
to all rounds; each training begins anew, so that its schedule fits its rounds. Jamieson, Talwalkar:
Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016. Reference
forecasters have no rounds: all candidates are fitted once. The test part has no say.
"""

from __future__ import annotations

import itertools
import logging
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, Words, counted
from stforecast.bench.run_groups import pooled, select
from stforecast.data.cubes import open_cube
from stforecast.forecasting.config import resolve
from stforecast.forecasting.forecaster import Forecaster

log = logging.getLogger(__name__)

ETA = 3
"""Factor of the rounds, and share of the candidates that go on, from one stage to the next."""

FEWEST = 2
"""Rounds of the first stage, at least."""

Grid = Mapping[str, Sequence[Any]]
"""Values to try by the name of their setting."""


def parse_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Read values such as `lr=0.001,0.01`; those that are no numbers are text.

    >>> parse_grid(["lr=0.001,0.01", "model=mlp,gru"])
    {'lr': [0.001, 0.01], 'model': ['mlp', 'gru']}
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        name = name.replace("-", "_")
        found = [_value(value.strip()) for value in values.split(",") if value.strip()]
        if not name or len(found) < 2:
            raise InputError(
                Words("{sweep}"), f" is {text!r}; give two values or more, like lr=0.001,0.01"
            )
        if name in grid:
            raise InputError(Words("{sweep}"), f" names {name} twice; give all values at once")
        grid[name] = found
    return grid


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


@dataclass(frozen=True, eq=False)
class Sweep:
    """What a sweep found.

    Attributes:
        chosen: the settings of the lowest validation MSE.
        trials: a row for each training: the settings, `rounds` and `validation_mse` of z-scores.
        swept: the grid in words.
    """

    chosen: dict[str, Any]
    trials: pd.DataFrame
    swept: str


def sweep(
    method: str, data: str | os.PathLike[str], settings: Mapping[str, Any], grid: Grid
) -> Sweep:
    """Choose the settings of a grid by the MSE on the validation part.

    Args:
        method: name of a method.
        data: a cube or a table.
        settings: all other settings.
        grid: values to try.

    Raises:
        InputError: if a setting is given twice or unknown, or the split has no validation part.
    """
    if twice := sorted(grid.keys() & settings.keys()):
        raise InputError(Words("{sweep} and {} both give {}; give it once", twice[0], twice[0]))
    candidates = [dict(zip(grid, v, strict=True)) for v in itertools.product(*grid.values())]
    rounds = [resolve(method, **settings, **one).total_rounds for one in candidates]
    cube, rows = open_cube(data), []
    for divisor in _stages(len(candidates), min(rounds)):
        errors = []
        for one in candidates:
            tried = {**one, **_fewer(resolve(method, **settings, **one).total_rounds, divisor)}
            errors.append(_validation_mse(method, cube, {**settings, **tried}))
            rows.append({**tried, "validation_mse": errors[-1]})
            log.info("sweep: %s: validation MSE %.4f", _in_words(tried), errors[-1])
        order = np.argsort(np.nan_to_num(errors, nan=np.inf), kind="stable")
        candidates = [candidates[i] for i in order[: -(-len(order) // ETA)]]
    swept = "; ".join(f"{name}={'|'.join(map(str, values))}" for name, values in grid.items())
    log.info("sweep: %s, by the validation MSE", _in_words(candidates[0]))
    return Sweep(candidates[0], pd.DataFrame(rows), f"{swept} ({counted(len(rows), 'training')})")


def _stages(n: int, rounds: int) -> list[int]:
    """Return by what the rounds of each stage are divided.

    >>> _stages(3, 90), _stages(9, 90), _stages(10, 90), _stages(10, 0)
    ([1], [3, 1], [9, 3, 1], [1])
    """
    divisors = [1]
    while n > ETA * divisors[0] and rounds >= FEWEST * ETA * divisors[0]:
        divisors.insert(0, ETA * divisors[0])
    return divisors


def _fewer(rounds: int, divisor: int) -> dict[str, int]:
    return {"rounds": rounds // divisor} if divisor > 1 else {}


def _validation_mse(method: str, cube: xr.Dataset, settings: dict[str, Any]) -> float:
    """Return the MSE of z-scores over the validation part, of a model without refits."""
    once = {} if {"refit", "refit_rounds"} & settings.keys() else {"refit": "never"}
    fitted = Forecaster(method, **settings, **once).fit(cube)
    found = pooled(
        select(
            fitted.evaluate(), metric="mse", split="validation", selection=fitted.config.run.select
        )
    )
    if found.empty:
        raise InputError(
            f"split {fitted.config.data.split} has no validation part to choose settings on; ",
            Words("choose another {split}, or leave out {sweep}"),
        )
    return float(found["value"].iloc[0])


def _in_words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())

"""Choice of settings on the validation part, by successive halving over a declared grid.

All candidates train for a few rounds, the best third of them for three times as many, and so on up
to all rounds; each training begins anew, so that its schedule fits its rounds. Jamieson, Talwalkar:
Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016. Reference
forecasters have no rounds: all candidates are fitted once. The test part has no say. With the
setting `tune`, every fit begins with a sweep over the method's own grid.
"""

from __future__ import annotations

import itertools
import logging
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, Words, counted
from stforecast.data.cubes import Data, open_cube
from stforecast.federated.core.options import Grid
from stforecast.federated.engine.faults import Diverged
from stforecast.forecasting.config import Config, check_read, own_grid, read_by, resolve
from stforecast.forecasting.fit import fit, prepare_series

log = logging.getLogger(__name__)

ETA = 3
"""Factor of the rounds, and share of the candidates that go on, from one stage to the next."""

FEWEST = 2
"""Rounds of the first stage, at least."""


def parse_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Read values such as `lr=0.001,0.01`; those that are no numbers are text.

    >>> parse_grid(["lr=0.001,0.01", "model=mlp,gru"])
    {'lr': [0.001, 0.01], 'model': ['mlp', 'gru']}
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        name = name.replace("-", "_")
        found = [parse_value(value.strip()) for value in values.split(",") if value.strip()]
        if not name or len(found) < 2:
            raise InputError(
                Words("{sweep}"), f" is {text!r}; give two values or more, like lr=0.001,0.01"
            )
        if name in grid:
            raise InputError(Words("{sweep}"), f" names {name} twice; give all values at once")
        grid[name] = found
    return grid


def parse_value(text: str) -> Any:
    """Parse the value of a setting; what is not TOML is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


@dataclass(frozen=True, eq=False)
class Sweep:
    """What a sweep found.

    Attributes:
        chosen: the settings of the lowest validation MSE.
        trials: a row for each training: the settings, `rounds` and `validation_mse` of z-scores,
            infinite where the values of all clients came to be.
        swept: the grid in words.
    """

    chosen: dict[str, Any]
    trials: pd.DataFrame
    swept: str


def tuned_settings(asked: Config, data: Data) -> Config:
    """Return the settings after the sweep that they ask for with `tune`."""
    if not asked.run.tune:
        return asked
    if not (grid := own_grid(asked)):
        log.warning("tune has nothing to choose: all settings of the method's grid are given")
        return asked
    settings = read_by(asked.method, asked.flat())
    others = {name: value for name, value in settings.items() if name not in {*grid, "method"}}
    return resolve(**asked.flat() | sweep(asked.method, data, others, grid).chosen)


def sweep(method: str, data: Data, settings: Mapping[str, Any], grid: Grid) -> Sweep:
    """Choose the settings of a grid by the MSE on the validation part.

    Args:
        method: name of a method.
        data: as for `open_cube`: a cube, a table (time × cell), or the path of either.
        settings: all other settings.
        grid: values to try.

    Raises:
        InputError: if a setting is given twice or unknown, or the split has no validation part.
    """
    if twice := sorted(grid.keys() & settings.keys()):
        raise InputError(Words("{sweep} and {} both give {}; give it once", twice[0], twice[0]))
    candidates = [dict(zip(grid, v, strict=True)) for v in itertools.product(*grid.values())]
    check_read(method, {**settings, **candidates[0]})
    rounds = [resolve(method, **settings, **one).total_rounds for one in candidates]
    cube, rows = open_cube(data), []
    for divisor in _stages(len(candidates), min(rounds)):
        errors = []
        for one in candidates:
            whole = resolve(method, **settings, **one).total_rounds
            tried = one if divisor == 1 else {**one, "rounds": whole // divisor}
            with _quiet():
                try:
                    error = _validation_mse(resolve(method, **{**settings, **tried}), cube)
                except Diverged:
                    error = math.inf
            errors.append(error)
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


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out the warnings of candidates, since the last fit repeats them."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _validation_mse(config: Config, data: Data) -> float:
    """Return the MSE of z-scores over the validation part."""
    fitted = fit(*prepare_series(config, data))
    if not fitted.data.validation_targets[1].any():
        raise InputError(
            f"split {config.data.split} has no observed validation target to choose settings on; ",
            Words("choose another {split}, or leave out {sweep} and {tune}"),
        )
    return fitted.validation_mse


def _in_words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())

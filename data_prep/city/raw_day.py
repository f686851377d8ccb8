"""Raw days of an invented city, in the format of Telecom Italia's files.

SMS and calls follow Internet activity, scaled by time of day. An empty field means no activity: a
field of expected activity v is filled with probability 1 - exp(-v / `GRAIN`) and then holds v
divided by that probability, so its mean stays v.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl

from data_prep.atomic import atomic_path
from data_prep.city.activity import weekly
from data_prep.city.kinds import KINDS
from data_prep.telecom_italia.cdr import SERVICES

GRAIN = 0.1  # approximate minimum of a filled field
HOME = 39
# Activity of a country relative to Italy's, before `Kind.foreign`; code 0 is "not known".
ABROAD = {0: 8e-4, 1: 6e-4, 7: 4e-4, 33: 12e-4, 34: 6e-4, 41: 10e-4, 44: 10e-4, 49: 12e-4}
# Daytime activity per unit of Internet: SMS in and out, calls in and out, Internet.
RATIOS = np.array([0.060, 0.040, 0.050, 0.055, 1.0])
# Factor of SMS and calls per unit of Internet at 0, 2, …, 22 h local time.
AWAKE = (0.35, 0.10, 0.03, 0.20, 0.80, 1.00, 1.00, 0.95, 1.00, 1.00, 0.85, 0.60)


def write_day(
    path: Path,
    ids: np.ndarray,
    kinds: np.ndarray,
    times: pd.DatetimeIndex,
    internet: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Write one raw day: a row for each cell, interval and country with any activity."""
    awake = weekly(AWAKE * 7, np.asarray(times.hour + times.minute / 60))
    services = internet[:, :, None] * RATIOS
    services[:, :, :4] *= awake[:, None, None]
    services[:, :, :4] *= np.exp(0.2 * rng.normal(size=(*internet.shape, 4)))
    foreign = np.array([KINDS[k].foreign for k in kinds])[:, None]
    key = {
        "cell": np.tile(ids, len(times)),
        "time": np.repeat(times.as_unit("ms").asi8, len(ids)),
    }
    frames = [_rows(key, HOME, services, rng)]
    # Roaming data were expensive in 2013: visitors use SMS and calls, and little Internet.
    roaming = services * foreign * np.array([1.0, 1.0, 1.0, 1.0, 0.1])
    for country, share in ABROAD.items():
        crowd = np.exp(rng.normal(-0.5, 1.0, size=(*internet.shape, 1)))
        frames.append(_rows(key, country, share * crowd * roaming, rng))
    table = pl.concat(frames).sort("cell", "time", "country")
    with atomic_path(path) as part:
        table.write_csv(part, separator="\t", include_header=False, float_precision=6)


def _rows(
    key: dict[str, np.ndarray], country: int, mean: np.ndarray, rng: np.random.Generator
) -> pl.DataFrame:
    """Draw one country's rows with any activity from `mean` `(step, cell, service)`."""
    filled = -np.expm1(-mean / GRAIN)
    amounts = mean / np.where(filled > 0, filled, 1.0)
    values = np.where(rng.random(mean.shape) < filled, amounts, np.nan)
    values = values.reshape(-1, len(SERVICES))
    rows = ~np.isnan(values).all(axis=1)
    columns = {name: values[rows, i] for i, name in enumerate(SERVICES)}
    frame = pl.DataFrame({k: v[rows] for k, v in key.items()} | columns)
    return frame.select(
        "cell",
        "time",
        pl.lit(country, pl.Int64).alias("country"),
        pl.col(*SERVICES).fill_nan(None),
    )
